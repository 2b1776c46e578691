"""The check of the whole log: an administrator requests it, a worker runs it, and the log records the result."""

from __future__ import annotations

from django.db import transaction

from accounts.core.access import EVERY_TEAM, Actor, Verb, require
from audit.core.log_check import facts_of
from audit.queries.log_checks import CHECK, last_check
from ledger.actions import append_event, enqueue
from ledger.core.actor import Process
from ledger.models import Event, Job
from ledger.queries.chain_verification import verify_chain


def request_check(*, actor: Actor) -> Job:
    """The job that checks the whole log; an unfinished job is reused. For administrators."""
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    return enqueue(kind=CHECK, key="log", args={"actor": actor.name})


def check_log(*, asked_by: str) -> Event:
    """Reads all events and appends the result as `log.checked`.

    So the finding is itself an event of the chain, and the next check covers it. Of a log that was whole the last time, the
    event that ended it then must still be there.
    """
    last = last_check()
    report = verify_chain((last.seq, last.hash) if last and last.is_whole else None)
    with transaction.atomic():
        return append_event(
            verb="log.checked",
            subject_type="log",
            subject_id="events",
            actor=Process(asked_by),
            reason=report.problem or f"The hashes of events 1 to {report.head_seq} match their contents.",
            facts=facts_of(report),
        )
