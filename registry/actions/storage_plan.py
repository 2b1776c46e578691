"""The plan of a collection, made by a worker: it reads every release and blob, which takes longer than a page may."""

from __future__ import annotations

from typing import Final

from django.utils import timezone

from accounts.core.access import EVERY_TEAM, Actor, Verb, require
from ledger.actions import enqueue
from ledger.models import Job
from registry.models import StoragePlan
from registry.queries.gc_plan import present_plan

#: The kind of the job.
PLAN: Final = "registry.plan_storage"


def request_storage_plan(*, actor: Actor) -> Job:
    """The job that plans; the one that waits or runs already, if there is one. For administrators."""
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    return enqueue(kind=PLAN, key="all", args={})


def plan_storage() -> None:
    """Plans a collection and keeps what it amounts to, in place of what was kept before. Collects nothing."""
    at = timezone.now()
    StoragePlan.objects.update_or_create(pk=1, defaults={"planned_at": at, "totals": present_plan(at).totals()})
