"""Named reads of jobs."""

from __future__ import annotations

from ledger.core.lifecycle import JobState
from ledger.models import Job


def unfinished_job(kind: str) -> Job | None:
    """The oldest job of the kind that waits for a worker or runs."""
    return Job.objects.filter(kind=kind, state__in=(JobState.QUEUED, JobState.RUNNING)).order_by("created_at").first()
