"""The endpoint of stable's odd replica, while it may still answer."""

from __future__ import annotations

from rollouts.core.rules.stable_replica import StableReplica
from rollouts.models import Rollout
from serving.models import Endpoint
from serving.traffic.queries.endpoints import replica_at, replica_by


def stable_odd_of(rollout: Rollout, odd: StableReplica) -> Endpoint | None:
    """The odd replica's endpoint, on whatever port its server is now; None once it is to stay no more and runs no server."""
    if rollout.stable_id is None:
        return None
    if odd.deployment is None:
        return replica_at(rollout.stable_id, rollout.environment_id, odd.replica)
    return replica_by(str(odd.deployment))
