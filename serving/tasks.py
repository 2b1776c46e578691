"""Celery tasks: keep the series of traffic."""

from __future__ import annotations

from ledger.hooks.job_handlers import Again, Beat, handler
from ledger.models import Job
from ledger.queries import clock
from serving.traffic.actions.keeping import HOUR, KEEP, keep_series


@handler(KEEP)
def run_keep_series(job: Job, beat: Beat) -> None:
    """Recurs four minutes after each full hour."""
    now = clock.now()
    done = keep_series(now, beat)
    next_at = now.replace(minute=4, second=0, microsecond=0) + HOUR * (now.minute >= 4)
    raise Again((next_at - now).total_seconds(), done)
