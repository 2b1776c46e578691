"""Level-triggered repair before a tick: requests the wanted state of the rollout's row again from its route and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.core.errors import DomainError
from rollouts.actions.engine_effects import ask_for_candidate, write_route
from rollouts.actions.forced_requests import refuse_forced_requests
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.rules.forced_calls import ForcedCalls
from rollouts.engine.world import RolloutEntry, WorldState
from rollouts.models import Rollout
from serving.environments.core.endpoints import EndpointState
from serving.models import Route
from serving.targets.queries.sleep import sleep_of
from serving.traffic.queries.routes import Ack, acknowledged

#: A failed replica is asked for again this often.
RETRY_S = 10.0
_ACKNOWLEDGED = Ack(True, None, "")


@dataclass(frozen=True)
class DesiredState:
    """Progress of others towards the row's wanted state."""

    ack: Ack = _ACKNOWLEDGED  # of its route; of a rollout without traffic, as if it were followed
    asked_at: float | None = None  # when its replica was last asked for, seconds since the epoch (UTC)
    replica_problem: str = ""  # a sentence, why the replica does not come
    load_failure: str = ""  # likewise, if its last try to load failed
    is_stable_asleep: bool = False  # it was unloaded for want of requests, and is woken


def ensure_desired_state(entry: RolloutEntry, world: WorldState) -> DesiredState:
    """Writes the route of a live rollout and asks for the replica of one that is prepared, where they are not as wanted.

    Each in a transaction of its own, before the tick's: they repair what the row says already, and change nothing that is
    as it should be. Raises StateChanged when the rollout moved since it was read, Stale when a newer engine leads.
    """
    rollout, state = entry.rollout, entry.engine_state
    if rollout.state in LIVE:
        return DesiredState(_ensure_route(rollout, state, world), state.asked_at)
    if rollout.state == RolloutState.PREPARING:
        return _ensure_replica(entry, world)
    return DesiredState(asked_at=state.asked_at)


def _ensure_route(rollout: Rollout, state: EngineState, world: WorldState) -> Ack:
    """Who follows the route that this rollout's row wants."""
    route = world.routes.get((rollout.environment_id, rollout.model_id))
    if route is not None and state.of(ForcedCalls).are_refused and not route.refuses_forced:
        refuse_forced_requests(rollout, fence=world.fence)
    if route is not None and route.fence == world.fence and _is_as_desired(route, rollout, state):
        return world.acks[route.pk]
    return acknowledged(
        write_route(
            rollout, rollout.weight_bp, fence=world.fence, reason=rollout.reason, is_promoting=state.is_promoting
        )
    )


def _is_as_desired(route: Route, rollout: Rollout, state: EngineState) -> bool:
    if state.is_promoting or rollout.stable_id is None:
        wanted: tuple[Any, ...] = (rollout.candidate_id, None, 0, 0)
    else:
        wanted = (rollout.stable_id, rollout.candidate_id, rollout.weight_bp, rollout.mirror_bp)
    return (route.stable_id, route.candidate_id, route.candidate_bp, route.mirror_bp) == wanted


def _ensure_replica(entry: RolloutEntry, world: WorldState) -> DesiredState:
    rollout, asked_at = entry.rollout, entry.engine_state.asked_at
    standing = world.serving_at(entry.places[0])
    is_retry_due = asked_at is None or world.at - asked_at >= RETRY_S
    has_failed = standing.state is EndpointState.FAILED
    failure = f"Its last try failed: {standing.why}" if has_failed else ""
    if not standing.is_wanted or (has_failed and is_retry_due):
        if problem := _why_after_stable(entry, world):
            return DesiredState(asked_at=asked_at, replica_problem=problem, load_failure=failure, is_stable_asleep=True)
        asked_at = world.at
        try:
            ask_for_candidate(rollout, fence=world.fence)
        except DomainError as error:
            return DesiredState(asked_at=asked_at, replica_problem=error.message, load_failure=failure)
        has_failed = False
    if has_failed:
        return DesiredState(asked_at=asked_at, replica_problem=failure, load_failure=failure)
    problem = _why_after_stable(entry, world)
    if not problem and standing.state is EndpointState.PENDING:
        return DesiredState(asked_at=asked_at, replica_problem=standing.why)
    return DesiredState(
        asked_at=asked_at, replica_problem=problem, load_failure=failure, is_stable_asleep=bool(problem)
    )


def _why_after_stable(entry: RolloutEntry, world: WorldState) -> str:
    """Why the candidate is not asked for yet, or waits, as sentences; empty where it needs not. Where stable sleeps its server is placed
    first: the candidate could take its room, and then neither would ever answer."""
    rollout, place = entry.rollout, entry.places[1]
    if rollout.stable is None or place is None or world.serving_at(place).is_wanted:
        return ""
    sleep = sleep_of(rollout.environment_id, rollout.model_id)
    if sleep is None:
        return ""
    said = f"{rollout.stable.name}, the rollback target, sleeps, and is given a server first. {sleep.trouble}"
    return said.rstrip()
