"""The one Celery task: it carries an id, and whoever gets the lease runs the job."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid

from celery import shared_task
from django.conf import settings
from django.db import close_old_connections, connection, transaction
from prometheus_client import Histogram

from ledger import actions
from ledger.core.errors import DomainError, Invalid, NotFound, Refused
from ledger.hooks.job_handlers import Again, kinds, registered
from ledger.models import Job

log = logging.getLogger(__name__)
JOB_SECONDS = Histogram(
    "sluicegate_job_duration_seconds",
    "Time of each try of a job, by its result: done, again or failed.",
    ("kind", "result"),
    buckets=(0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0, 7200.0),
)
#: Trying these again gives the same answer.
FINAL_ERRORS = (Refused, NotFound, Invalid)


@shared_task(name="ledger.run_job")
def run_job(job_id: str) -> None:
    """Claims the job, runs its handler under a heartbeat, and writes how it ended. Copies of the message do nothing."""
    owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    job = actions.claim(job_id, owner, settings.JOB_LEASE_S)
    if job is None:
        log.info("job %s is not for us: taken, finished or not due", job_id)
        return
    known = registered(job.kind)
    if known is None:
        _fail(job, owner, f"No handler for jobs of kind {job.kind!r}; this worker knows {', '.join(kinds()) or 'none'}. "
                          "Start a worker of this version, then ask for the work again.")  # fmt: skip
        return
    if job.attempts > job.max_attempts:
        _fail(
            job,
            owner,
            f"Its worker died or was lost {job.max_attempts} times in a row. The workers' log tells why; then ask for it again.",
        )
        return
    began = time.monotonic()
    with Heartbeat(job, owner) as heart:
        try:
            known.handle(job, heart.beat)
        except Again as again:
            _count(job, "again", began)
            actions.release_for_retry(job.pk, owner, delay_s=again.delay_s, why=again.why, costs_attempt=False)
            return
        except Exception as error:
            _count(job, "failed", began)
            log.exception("job %s (%s %s), attempt %d of %d", job.pk, job.kind, job.key, job.attempts, job.max_attempts)
            _after_error(job, owner, error)
            return
    _count(job, "done", began)
    if not actions.finish(job.pk, owner):
        log.warning("job %s (%s %s) ended here, but another worker had taken it over", job.pk, job.kind, job.key)


def _count(job: Job, result: str, began: float) -> None:
    JOB_SECONDS.labels(job.kind, result).observe(time.monotonic() - began)


def _after_error(job: Job, owner: str, error: Exception) -> None:
    why = str(error) if isinstance(error, DomainError) else f"{type(error).__name__}: {error}"
    if isinstance(error, FINAL_ERRORS) or job.attempts >= job.max_attempts:
        _fail(job, owner, why)
    else:
        actions.release_for_retry(job.pk, owner, delay_s=min(60.0, 2.0**job.attempts), why=why)


def _fail(job: Job, owner: str, error: str) -> None:
    """The job is failed and its owner told, both or neither: if telling fails, the lease runs out and it is tried again."""
    known = registered(job.kind)
    with transaction.atomic():
        if not actions.finish(job.pk, owner, error=error):
            return
        log.error("job %s (%s %s) failed: %s", job.pk, job.kind, job.key, error)
        job.refresh_from_db()
        if known is not None and known.on_failed is not None:
            known.on_failed(job)
        if known is None or known.records_failure:
            actions.record_failure(job)


class Heartbeat:
    """Extends the lease from a thread of its own while the handler works, until the job is lost or done."""

    def __init__(self, job: Job, owner: str) -> None:
        self.job = job
        self.owner = owner
        self.lease_s: float = settings.JOB_LEASE_S
        self.is_ours = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat of {job.kind} {job.key}", daemon=True)

    def beat(self, done: int | None = None, total: int | None = None, note: str | None = None) -> bool:
        """Reports progress; whether the job is still ours. After False the handler should stop: another worker has it."""
        self.is_ours = self.is_ours and actions.heartbeat(self.job.pk, self.owner, self.lease_s, done, total, note)
        return self.is_ours

    def _run(self) -> None:
        try:
            while not self._over.wait(self.lease_s / 3) and self.is_ours:
                try:
                    close_old_connections()
                    self.beat()
                except Exception:  # the database may be away for a moment; the lease outlives two missed beats
                    log.exception("no heartbeat for job %s", self.job.pk)
        finally:
            connection.close()

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=10)
