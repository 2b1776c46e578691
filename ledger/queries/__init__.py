"""Named reads of the event log and of the database's clock."""

from ledger.queries.events import events, first_seq_since, head_seq, head_seq_expression

__all__ = ["events", "first_seq_since", "head_seq", "head_seq_expression"]
