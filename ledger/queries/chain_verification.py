"""Whether the log of events is still what was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from django.db import connection, transaction

from ledger.core.chain import GENESIS, Break, ChainReport, Link, walk, walk_part
from ledger.models import ChainHead, Event


def link_of(event: Event) -> Link:
    """The event in the form that is hashed."""
    return Link(
        seq=event.seq, at=event.at, act_id=str(event.act_id), verb=event.verb, subject_type=event.subject_type,
        subject_id=event.subject_id, actor=event.actor, from_state=event.from_state, to_state=event.to_state,
        reason=event.reason, facts=event.facts, prev_hash=event.prev_hash, hash=event.hash,
    )  # fmt: skip


def verify_chain(pin: tuple[int, str] | None = None) -> ChainReport:
    """Walks over all events and says where an edit, a deletion, a reordering or a cut-off end shows.

    Reads one snapshot, so that events written meanwhile do not look like a break. It finds whoever changed rows without
    rewriting everything after them; against a rewrite of the whole log, keep `head_seq` and `head` somewhere else and give
    them as `pin`.
    """
    with transaction.atomic():
        if not connection.savepoint_ids:  # ours is the outermost transaction, so it may choose
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        head = ChainHead.objects.filter(pk=1).first()
        return walk(_links(), head_seq=head.seq if head else 0, head_hash=head.hash if head else GENESIS, pin=pin)


def verify_part(first: int, most: int, *, noted: tuple[int, str] | None = None) -> ChainReport:
    """As `verify_chain`, of at most `most` successive events from the number `first` on: what a page can wait for.

    `noted`: (seq, hash) of the event before them as an earlier check noted it; it must still be so.
    """
    before = Event.objects.filter(seq__lt=first).order_by("-seq").values_list("seq", "hash").first()
    before = before or (0, GENESIS)
    rows = Event.objects.filter(seq__gte=first).order_by("seq")[:most]
    report = walk_part((link_of(row) for row in rows.iterator(chunk_size=1000)), after=before)
    if noted in (None, before):
        return report
    said = f"Event {before[0]} is not what an earlier check noted before event {first}: the log was rewritten since."
    return replace(report, breaks=(Break(before[0], "rewritten", said), *report.breaks))


def _links() -> Iterator[Link]:
    for event in Event.objects.order_by("seq").iterator(chunk_size=1000):
        yield link_of(event)
