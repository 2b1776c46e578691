"""Celery tasks: verify uploads, sweep ended uploads, discard abandoned drafts, plan a collection and collect."""

from __future__ import annotations

from accounts.actions import forget_expired_sessions
from accounts.core.access import Actor
from ledger.hooks.job_handlers import Again, Beat, handler
from ledger.models import Job
from registry import actions
from registry.models import Upload

#: Interval of the sweep job while there may be something to sweep.
SWEEP_EVERY_S = 3600.0


def _upload(job: Job) -> Upload | None:
    return Upload.objects.select_related("release__model").filter(pk=job.args["upload"]).first()


def _not_verified(job: Job) -> None:
    upload = _upload(job)
    if upload is not None:
        actions.note_failure(upload, job.error)


@handler(actions.VERIFY, on_failed=_not_verified)
def verify_upload(job: Job, beat: Beat) -> None:
    """Reads the bytes of the upload that the job names, once."""
    upload = _upload(job)
    if upload is not None:
        actions.verify(upload, beat)


@handler(actions.SWEEP)
def sweep_uploads(job: Job, beat: Beat) -> None:
    """Clears the store of uploads that are over; called again as long as there are uploads."""
    actions.sweep_uploads(actor=Actor.system("sweep"))
    if Upload.objects.filter(is_stored=True).exists():
        raise Again(SWEEP_EVERY_S, "uploads are under way")


@handler(actions.HOUSEKEEPING)
def run_housekeeping(job: Job, beat: Beat) -> None:
    """Discards abandoned drafts and, where the settings say so, collects; expired sessions go, too; recurs every few hours."""
    while forget_expired_sessions():
        pass
    done = actions.run_housekeeping(actor=Actor.system("housekeeping"))
    raise Again(
        actions.HOUSEKEEPING_EVERY.total_seconds(), f"{done.drafts} drafts discarded, {done.deleted} blobs deleted"
    )
