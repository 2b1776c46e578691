"""What follows the write of weight 0: acknowledgement by the gateways, confirmation by counters, and the end of a rollback.

A rollout that waits for its next look takes the same way, but for the end: its record of the crossing has the clock.
"""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from rollouts.actions.engine_effects import (
    commit_tick,
    finish_rollback,
    note_acknowledged_zero,
    note_stuck,
    note_withdrawn,
    write_route,
)
from rollouts.core.counter_deltas import Reading
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import RolloutState
from rollouts.core.tick import Outcome, Tick
from rollouts.engine.gateway_counters import CounterSnapshot
from rollouts.engine.world import RolloutEntry, WorldState
from rollouts.models import Rollout
from serving.models import Route
from serving.traffic.queries.routes import Ack, acknowledged

log = structlog.get_logger(__name__)
S = RolloutState


def continue_rollback(
    entry: RolloutEntry, tick: Tick, world: WorldState, counters: CounterSnapshot, *, confirm_within_s: float
) -> Outcome:
    """Writes the tick, then goes on with the rollback as far as gateways and counters allow.

    `confirm_within_s`: counters that cannot confirm an acknowledged weight 0 hold up the end no longer than this.
    """
    before, rollout = entry.engine_state, entry.rollout
    outcome = commit_tick(rollout, tick, fence=world.fence)
    if rollout.stable is None:
        finish_rollback(rollout, confirmed_at=None, fence=world.fence)
    elif awaits_zero(rollout):
        check_zero_acknowledged(entry, world)
    else:
        _confirm(rollout, before, tick.engine_state, counters, world, confirm_within_s)
    return outcome


def awaits_zero(rollout: Rollout) -> bool:
    """Whether some gateway has not acknowledged the weight 0 that was last written."""
    return _zero_at(rollout) is None


def is_confirmed(rollout: Rollout) -> bool:
    """Whether counters have shown, since the last crossing, that no request reaches the candidate."""
    return bool(rollout.crossings) and rollout.crossings[-1]["confirmed_at"] is not None


def _zero_at(rollout: Rollout) -> datetime | None:
    """When every gateway had acknowledged the weight 0 that was last written; None before."""
    if not rollout.is_withdrawn:
        return rollout.zero_at
    at = rollout.crossings[-1]["zero_at"]
    return datetime.fromisoformat(at) if at else None


def _confirm(
    rollout: Rollout,
    before: EngineState,
    state: EngineState,
    counters: CounterSnapshot,
    world: WorldState,
    within_s: float,
) -> None:
    zero_at = _zero_at(rollout)
    assert zero_at is not None
    zero = zero_at.timestamp()
    is_after = bool(counters.readings) and all(_began_after(before, gateway, zero) for gateway in counters.readings)
    is_silent = state.last.candidate.attempts == 0 and state.drawn == 0
    is_shown = is_after and is_silent and not counters.problem and state.read_at is not None
    is_late = world.at - zero > within_s
    # Requests that were drawn under the weight that each gateway follows now: under weight 0 there are none. What else ends
    # was drawn before it, and answers of slow models and streams end as late as they like.
    drawn_at_zero = state.last.candidate.routed
    if is_late and is_after and not counters.problem and drawn_at_zero > 0:
        if rollout.state != S.STUCK:
            reason = f"The counters still show requests for {rollout.candidate.name} at weight 0"
            note_stuck(rollout, reason, fence=world.fence)
    elif rollout.is_withdrawn:
        if is_shown and state.read_at:
            note_withdrawn(rollout, datetime.fromtimestamp(state.read_at, UTC), fence=world.fence)
    elif is_shown or is_late:
        name = rollout.candidate.name
        because = f"The counters show no request for {name} at weight 0."
        if not is_shown:
            because = f"Every gateway has acknowledged weight 0; the counters cannot confirm it for {name}."
        note_acknowledged_zero(rollout, zero_at, fence=world.fence, because=because)  # if it was stuck
        confirmed_at = datetime.fromtimestamp(state.read_at, UTC) if is_shown and state.read_at else None
        are_answers_due = is_after and not counters.problem and state.drawn > 0
        finish_rollback(rollout, confirmed_at=confirmed_at, fence=world.fence, are_answers_due=are_answers_due)


def check_zero_acknowledged(entry: RolloutEntry, world: WorldState) -> bool:
    """Whether every gateway has acknowledged weight 0, noted with the gateways' own time."""
    rollout = entry.rollout
    assert rollout.stable is not None
    route, ack = _route_of(rollout, world)
    if not _is_shut(route, rollout) or route is None or route.fence != world.fence:
        ack = acknowledged(write_route(rollout, 0, fence=world.fence, reason=rollout.reason))
    if ack.all_acked and ack.acked_at is not None:
        note_acknowledged_zero(rollout, ack.acked_at, fence=world.fence)
        return True
    decided_at = rollout.decided_at or world.now
    if rollout.is_withdrawn:
        decided_at = datetime.fromisoformat(rollout.crossings[-1]["decided_at"])
    waited_s = world.at - decided_at.timestamp()
    if rollout.state != S.STUCK and waited_s >= entry.policy.ack_deadline_s:
        why = f": {ack.error.rstrip('.')}" if ack.error else ""
        reason = f"The gateways have not acknowledged weight 0 for {waited_s:.0f} s{why}"
        note_stuck(rollout, reason, fence=world.fence)
        log.error("rollback_stuck", rollout=rollout.pk, waited_s=round(waited_s, 1), error=ack.error)
    return False


def _route_of(rollout: Rollout, world: WorldState) -> tuple[Route | None, Ack]:
    route = world.routes.get((rollout.environment_id, rollout.model_id))
    return route, world.acks[route.pk] if route is not None else Ack(False, None, "")


def _is_shut(route: Route | None, rollout: Rollout) -> bool:
    """Whether the route sends nothing to the candidate, and everything to the pinned stable release."""
    if route is None:
        return False
    is_quiet = route.candidate_bp == 0 and route.mirror_bp == 0
    return is_quiet and (route.stable_id, route.candidate_id) == (rollout.stable_id, rollout.candidate_id)


def _began_after(before: EngineState, gateway: str, instant: float) -> bool:
    """Whether the reading before this tick's was taken after `instant`, so that what it shows since is wholly later."""
    reading: Reading | None = before.readings.get(gateway)
    return reading is not None and reading.at >= instant
