"""Which deployment stable's odd replica is, while it may still answer."""

from __future__ import annotations

from rollouts.core.rules.stable_replica import StableReplica
from rollouts.models import Rollout
from serving.models import Deployment
from serving.queries.answering import deployment_by_name, staying_or_running


def stable_odd_of(rollout: Rollout, odd: StableReplica) -> Deployment | None:
    """The odd replica's deployment, on whatever port its server is now; None once it is to stay no more and runs no server."""
    if rollout.stable_id is None:
        return None
    if odd.deployment is None:
        return deployment_by_name(rollout.stable_id, rollout.environment_id, odd.replica)
    return staying_or_running(odd.deployment)
