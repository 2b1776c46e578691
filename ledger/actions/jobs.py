"""The verbs of jobs: enqueue, make due now, claim, extend, finish and send."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from celery import current_app
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from ledger.actions.events import append_event
from ledger.actions.transitions import transition_rows
from ledger.core.actor import Process
from ledger.core.lifecycle import MOVES, JobState
from ledger.models import Job

#: The actor of what happens to jobs themselves.
WORKER = Process("system:worker")
UNFINISHED = (JobState.QUEUED, JobState.RUNNING)


def enqueue(
    *,
    kind: str,
    key: str,
    args: dict[str, Any],
    queue: str = "default",
    due_at: datetime | None = None,
    max_attempts: int = 3,
) -> Job:
    """The waiting or running job of this (kind, key): the one that is there, else a new one. Sent when the caller commits.

    `due_at` (aware; None = now) may lie in the future; the scheduler sends it then.
    """
    with transaction.atomic():
        job = Job.objects.filter(kind=kind, key=key, state__in=UNFINISHED).first()
        if job is not None:
            return job
        job = Job(kind=kind, key=key, args=args, queue=queue, max_attempts=max_attempts)
        try:
            with transaction.atomic():
                Job.objects.bulk_create([_with_due(job, due_at)])
        except IntegrityError:  # somebody else was first
            return Job.objects.get(kind=kind, key=key, state__in=UNFINISHED)
        job = Job.objects.get(pk=job.pk)
        if due_at is None:
            # Robust: the row is the truth. If Celery's broker is away, the scheduler sends the id later.
            transaction.on_commit(lambda: send(job), robust=True)
        return job


def make_due_now(*, kind: str, key: str) -> Job:
    """The unfinished job of this (kind, key), due now: the one that waits for later is pulled forward, else a new one.

    The scheduler sends it, so that the caller never waits for the transport.
    """
    with transaction.atomic():
        job = enqueue(kind=kind, key=key, args={}, due_at=timezone.now())
        Job.objects.filter(pk=job.pk, state=JobState.QUEUED, due_at__gt=Now()).update(due_at=Now(), sent_at=None)
        return job


def _with_due(job: Job, due_at: datetime | None) -> Job:
    job.due_at = due_at if due_at is not None else Now()  # the database's clock
    return job


def send(job: Job) -> None:
    """Hands the job's id to Celery. Raises what the transport raises when it is away."""
    # Noted first: a message that got lost is sent again after RESEND_AFTER_S, one that was not noted would be sent at every look.
    Job.objects.filter(pk=job.pk).update(sent_at=Now())
    current_app.signature("ledger.run_job", args=[str(job.pk)], queue=job.queue, retry=False).apply_async()


def claim(job_id: uuid.UUID | str, owner: str, lease_s: float) -> Job | None:
    """The job, now running for `owner` until the lease runs out; None when it is not due, is finished, or another holds it.

    Takes over a job whose lease ran out. `job.attempts` counts this one.
    """
    free = Q(state=JobState.QUEUED, due_at__lte=Now()) | Q(state=JobState.RUNNING, lease_until__lt=Now())
    moved = Job.objects.filter(free, pk=job_id).update(
        state=JobState.RUNNING, owner=owner, lease_until=Now() + timedelta(seconds=lease_s), attempts=F("attempts") + 1
    )
    return Job.objects.get(pk=job_id) if moved else None


def heartbeat(
    job_id: uuid.UUID | str,
    owner: str,
    lease_s: float,
    done: int | None = None,
    total: int | None = None,
    note: str | None = None,
) -> bool:
    """Whether `owner` still holds the job; extends its lease and notes the progress that is given."""
    progress: dict[str, Any] = {
        name: value
        for name, value in {
            "progress_done": done,
            "progress_total": total,
            "progress_note": note and note[:300],
        }.items()
        if value is not None
    }
    held = Job.objects.filter(pk=job_id, owner=owner, state=JobState.RUNNING)
    return held.update(lease_until=Now() + timedelta(seconds=lease_s), **progress) == 1


def finish(job_id: uuid.UUID | str, owner: str, error: str = "") -> bool:
    """Whether the job is now done, or failed where an `error` is given. False when `owner` no longer holds it."""
    to = JobState.FAILED if error else JobState.DONE
    return _move(job_id, JobState.RUNNING, to, owner=owner, error=error, finished_at=Now(), lease_until=None)


def release_for_retry(
    job_id: uuid.UUID | str, owner: str, *, delay_s: float, why: str, costs_attempt: bool = True
) -> bool:
    """Whether the job waits again, due in `delay_s` seconds, with `why` as its note. False when `owner` no longer holds it."""
    attempts = F("attempts") if costs_attempt else F("attempts") - 1
    return _move(
        job_id, JobState.RUNNING, JobState.QUEUED, owner=owner, due_at=Now() + timedelta(seconds=delay_s), sent_at=None,
        lease_until=None, attempts=attempts, progress_note=why[:300],
    )  # fmt: skip


def record_failure(job: Job) -> None:
    """The event of a job that failed for good. The last thing in its transaction: it takes the log's lock."""
    append_event(
        verb="job.failed", subject_type="job", subject_id=job.pk, actor=WORKER, from_state=JobState.RUNNING,
        to_state=JobState.FAILED, reason=job.error, facts={"kind": job.kind, "key": job.key, "attempts": job.attempts},
    )  # fmt: skip


def _move(job_id: uuid.UUID | str, seen: JobState, to: JobState, *, owner: str, **columns: Any) -> bool:
    held = Q(pk=job_id) & (Q(owner=owner) if seen is JobState.RUNNING else Q())
    return transition_rows(Job.objects.filter(held), seen, to, moves=MOVES, **columns) == 1
