"""Celery task: check the whole log."""

from __future__ import annotations

from audit import actions
from audit.queries.log_checks import CHECK
from ledger.hooks.job_handlers import Beat, handler
from ledger.models import Job


@handler(CHECK)
def check_log(job: Job, beat: Beat) -> None:
    """Reads every event once."""
    actions.check_log(asked_by=job.args["actor"])
