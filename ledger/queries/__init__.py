"""Named reads of the event log and of the database's clock."""

from ledger.queries.events import first_seq_since, head_seq

__all__ = ["first_seq_since", "head_seq"]
