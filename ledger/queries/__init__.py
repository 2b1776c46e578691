"""Named reads of the event log and of the database's clock."""

from ledger.queries.events import events, first_seq_since, head_seq

__all__ = ["events", "first_seq_since", "head_seq"]
