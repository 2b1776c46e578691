"""Named reads of the event log."""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime

from django.db.models import QuerySet, Subquery
from django.db.models.functions import Coalesce

from ledger.models import ChainHead, Event


def head_seq() -> int:
    """The last event's number; 0 before the first. Every event up to it can be read."""
    return ChainHead.objects.filter(pk=1).values_list("seq", flat=True).first() or 0


def head_seq_expression() -> Coalesce:
    """`head_seq` within another query."""
    return Coalesce(Subquery(ChainHead.objects.filter(pk=1).values("seq")), 0)


def events() -> QuerySet[Event]:
    """The whole log. Who may read which of it is the audit's to say."""
    return Event.objects.all()


def first_seq_since(instant: datetime) -> int:
    """The number of the first event that is not older than `instant`. Numbers have no gaps, so a few looks are enough."""

    def at(seq: int) -> datetime:
        return Event.objects.values_list("at", flat=True).get(seq=seq)

    return 1 + bisect_left(range(1, head_seq() + 1), instant, key=at)
