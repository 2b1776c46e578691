"""Named reads of leases and jobs: who leads, and what is due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min, Q

from ledger.core.lifecycle import JobState
from ledger.models import Job, Lease


@dataclass(frozen=True)
class QueueDepth:
    """`due`: waiting though their time has come, the oldest since `oldest_due_at`. `lapsed`: running, with a lease that ran out."""

    due: int
    oldest_due_at: datetime | None
    running: int
    lapsed: int
    last_finished_at: datetime | None


def leases() -> list[Lease]:
    """Every name that was ever led, in their order."""
    return list(Lease.objects.order_by("name"))


def queue_depth(now: datetime) -> QueueDepth:
    is_due = Q(state=JobState.QUEUED, due_at__lte=now)
    is_running = Q(state=JobState.RUNNING)
    told = Job.objects.aggregate(
        due=Count("pk", filter=is_due),
        oldest_due_at=Min("due_at", filter=is_due),
        running=Count("pk", filter=is_running),
        lapsed=Count("pk", filter=is_running & Q(lease_until__lt=now)),
        last_finished_at=Max("finished_at"),
    )
    return QueueDepth(**told)
