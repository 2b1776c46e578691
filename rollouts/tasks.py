"""The doors through which workers come."""

from __future__ import annotations

from ledger.jobs import Beat, handler
from ledger.models import Job
from rollouts.actions.instant import LET_GO, drain_taken_back
from rollouts.models import Rollout


@handler(LET_GO)
def let_go(job: Job, beat: Beat) -> None:
    """Ends the servers of a release that was taken back after its promotion, once nothing goes there any more."""
    rollout = Rollout.objects.select_related("candidate__model__team", "environment", "model").get(
        pk=job.args["rollout"]
    )
    drain_taken_back(rollout)
