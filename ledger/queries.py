"""Named reads of the ledger."""

from __future__ import annotations

from django.db.models import QuerySet

from ledger.core.lifecycle import JobState
from ledger.models import Event, Job


def events_of(subject_type: str, subject_id: str | int) -> QuerySet[Event]:
    """What happened to one thing, newest first."""
    return Event.objects.filter(subject_type=subject_type, subject_id=str(subject_id)).order_by("-seq")


def recent_events(limit: int = 50) -> QuerySet[Event]:
    """The newest events of everything, newest first."""
    return Event.objects.order_by("-seq")[:limit]


def unfinished_job(kind: str, key: str) -> Job | None:
    """The job that waits or runs for this (kind, key); there is at most one."""
    return Job.objects.filter(kind=kind, key=key, state__in=[JobState.QUEUED, JobState.RUNNING]).first()


def newest_job(kind: str, key: str) -> Job | None:
    """The latest job for this (kind, key), finished or not."""
    return Job.objects.filter(kind=kind, key=key).order_by("-created_at").first()
