"""Celery tasks of rollouts."""

from __future__ import annotations

from ledger.hooks.job_handlers import Beat, handler
from ledger.models import Job
from rollouts.actions.instant_rollback import DRAIN_REVERTED, drain_reverted
from rollouts.actions.undo_window import DRAIN_PREVIOUS, drain_previous
from rollouts.models import Rollout


@handler(DRAIN_REVERTED)
def drain_reverted_release(job: Job, beat: Beat) -> None:
    """Drains the servers of a release whose promotion was reverted, once no gateway routes to it."""
    drain_reverted(_rollout(job))


@handler(DRAIN_PREVIOUS)
def drain_previous_release(job: Job, beat: Beat) -> None:
    """Drains the servers of a release that was the control of its successor, once no gateway routes to it."""
    drain_previous(_rollout(job), job.args["reason"])


def _rollout(job: Job) -> Rollout:
    related = Rollout.objects.select_related("candidate__model__team", "stable", "environment", "model")
    return related.get(pk=job.args["rollout"])
