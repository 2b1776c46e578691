"""The one verb of the log: append."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from django.db import connection, transaction

from ledger.core.actor import Actor
from ledger.core.chain import GENESIS, storable
from ledger.core.verbs import EventVerb
from ledger.models import ChainHead, Event
from ledger.queries.chain_verification import link_of

#: The advisory lock that makes writers of events take turns; any number that nobody else uses.
_CHAIN_LOCK = 0x51_0C_6A_7E
#: PostgreSQL's channel on which a commit says that there are new events; which ones stands in the log.
EVENT_CHANNEL = "sluicegate_events"


def append_event(
    *,
    verb: str,
    subject_type: str,
    subject_id: str | int | uuid.UUID,
    actor: Actor,
    from_state: str = "",
    to_state: str = "",
    reason: str = "",
    facts: dict[str, Any] | None = None,
    act_id: uuid.UUID | None = None,
) -> Event:
    """The event, written at the end of the chain in the caller's transaction.

    Writers take turns from here until they commit, so append late and keep the transaction short. `facts` may hold
    anything; see `ledger.core.chain.storable` for what becomes of it.
    Raises ValueError for a verb that is not in EventVerb, TransactionManagementError outside of a transaction.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            "append_event belongs into the transaction of the change that it tells of."
        )
    with connection.cursor() as cursor:
        # The notice is sent by the commit, under a lock of all notices; writers of events take turns anyway.
        cursor.execute("SELECT pg_advisory_xact_lock(%s), pg_notify(%s, '')", [_CHAIN_LOCK, EVENT_CHANNEL])
    head = ChainHead.objects.filter(pk=1).first() or ChainHead(seq=0, hash=GENESIS)
    event = Event(
        seq=head.seq + 1, at=datetime.now(UTC), act_id=act_id or uuid.uuid4(), verb=EventVerb(verb).value,
        subject_type=subject_type, subject_id=str(subject_id), actor=storable(actor.name), from_state=str(from_state),
        to_state=str(to_state), reason=storable(reason), facts=storable(facts or {}), prev_hash=head.hash,
    )  # fmt: skip
    event.hash = link_of(event).expected_hash()
    event.save(force_insert=True)
    ChainHead.objects.update_or_create(pk=1, defaults={"seq": event.seq, "hash": event.hash})
    return event
