"""Celery tasks of rollouts."""

from __future__ import annotations

from ledger.hooks.job_handlers import Beat, handler
from ledger.models import Job
from rollouts.actions.instant_rollback import DRAIN_REVERTED, drain_reverted
from rollouts.models import Rollout


@handler(DRAIN_REVERTED)
def drain_reverted_release(job: Job, beat: Beat) -> None:
    """Drains the servers of a release whose promotion was reverted, once no gateway routes to it."""
    rollout = Rollout.objects.select_related("candidate__model__team", "environment", "model").get(
        pk=job.args["rollout"]
    )
    drain_reverted(rollout)
