"""Capacity of the servers of a rollout's arms, as the database has it now."""

from __future__ import annotations

from rollouts.core.engine_state import EngineState
from rollouts.core.headroom import Headroom
from rollouts.models import Rollout
from serving.traffic.core.admission import Proof
from serving.traffic.queries.admission import looked_for_in
from serving.traffic.queries.endpoints import ReleaseStanding, standing_of
from validators.queries.capacity import admission_proof, proven_per_s


def proven_rates(rollout: Rollout) -> tuple[float | None, float | None]:
    """Proven requests a second of a candidate's and a stable server; None without a proof."""
    return proven_per_s(rollout.candidate), proven_per_s(rollout.stable) if rollout.stable is not None else None


def proofs_for(rollout: Rollout) -> dict[str, Proof | None]:
    """What one server of each arm is proven for, of arms that the route has not seen yet: reports are read once, when a release comes."""
    seen = looked_for_in(rollout.environment_id, rollout.model_id)
    arms = [one for one in (rollout.candidate, rollout.stable) if one is not None and str(one.pk) not in seen]
    return {str(one.pk): admission_proof(one) for one in arms}


def headroom_of(rollout: Rollout) -> Headroom:
    """As the engine sees it, for a person's verb."""
    where, candidate, stable = rollout.environment_id, str(rollout.candidate_id), str(rollout.stable_id)
    serving = standing_of([candidate, *([stable] if rollout.stable_id else [])])
    own, other = (serving.get((where, one), ReleaseStanding()) for one in (candidate, stable))
    whole = other if rollout.stable_id else own
    return Headroom(whole.wanted, own.heard, other.heard, *proven_rates(rollout))


def routed_per_s(rollout: Rollout) -> float | None:
    """User requests a second of both arms since the step began, as the engine last wrote them; None before any."""
    state, began = EngineState.from_json(rollout.engine_state), rollout.step_started_at
    routed = state.step.candidate.routed + state.step.stable.routed
    if not routed or began is None or state.read_at is None or state.read_at <= began.timestamp():
        return None
    return routed / (state.read_at - began.timestamp())
