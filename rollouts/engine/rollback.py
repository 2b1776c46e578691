"""What is left to do of a rollback: acknowledgement, confirmation by counters, the end."""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from rollouts.actions.engine_effects import (
    commit_tick,
    finish_rollback,
    note_acknowledged_zero,
    note_stuck,
    write_route,
)
from rollouts.actions.tick_records import Outcome, Tick
from rollouts.core.counter_deltas import Reading
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import RolloutState
from rollouts.engine.gateway_counters import CounterSnapshot
from rollouts.engine.world import RolloutEntry, WorldState
from rollouts.models import Rollout
from serving.actions.routes import Ack, acknowledged
from serving.models import Route

log = structlog.get_logger(__name__)
S = RolloutState
#: Counters that cannot confirm an acknowledged weight 0 do not hold up the end for longer than this.
CONFIRM_WITHIN_S = 30.0


def continue_rollback(known: RolloutEntry, tick: Tick, view: WorldState, seen: CounterSnapshot) -> Outcome:
    """Writes the tick, then goes on with the rollback as far as gateways and counters allow."""
    before, rollout = known.carry, known.rollout
    outcome = commit_tick(tick)
    if rollout.stable is None:
        finish_rollback(rollout, confirmed_at=None, fence=view.fence)
    elif rollout.zero_at is None:
        check_zero_acknowledged(known, view)
    else:
        _confirm(rollout, before, tick.carry, seen, view)
    return outcome


def _confirm(
    rollout: Rollout, before: EngineState, carry: EngineState, seen: CounterSnapshot, view: WorldState
) -> None:
    assert rollout.zero_at is not None
    zero = rollout.zero_at.timestamp()
    is_after = bool(seen.readings) and all(_began_after(before, gateway, zero) for gateway in seen.readings)
    is_silent = carry.last.candidate.attempts == 0 and carry.drawn == 0
    is_confirmed = is_after and is_silent and not seen.problem and carry.read_at is not None
    is_late = view.at - zero > CONFIRM_WITHIN_S
    # Requests that were drawn under the weight that each gateway follows now: under weight 0 there are none. What else ends
    # was drawn before it, and answers of slow models and streams end as late as they like.
    drawn_at_zero = carry.last.candidate.routed
    if is_late and is_after and not seen.problem and drawn_at_zero > 0:
        if rollout.state == S.ROLLING_BACK:
            said = f"The counters still show requests for {rollout.candidate.name} at weight 0"
            note_stuck(rollout, said, fence=view.fence)
    elif is_confirmed or is_late:
        note_acknowledged_zero(rollout, rollout.zero_at, fence=view.fence)  # one that was stuck goes on
        confirmed_at = datetime.fromtimestamp(carry.read_at, UTC) if is_confirmed and carry.read_at else None
        are_answers_due = is_after and not seen.problem and carry.drawn > 0
        finish_rollback(rollout, confirmed_at=confirmed_at, fence=view.fence, are_answers_due=are_answers_due)


def check_zero_acknowledged(known: RolloutEntry, view: WorldState) -> bool:
    """Whether every gateway has acknowledged weight 0, noted with the gateways' own time."""
    rollout = known.rollout
    assert rollout.stable is not None
    route, ack = _route_of(rollout, view)
    if not _is_shut(route, rollout) or route is None or route.fence != view.fence:
        write_route(rollout, 0, fence=view.fence, reason=rollout.reason)
        ack = acknowledged(Route.objects.get(environment_id=rollout.environment_id, model_id=rollout.model_id))
    if ack.all_acked and ack.acked_at is not None:
        note_acknowledged_zero(rollout, ack.acked_at, fence=view.fence)
        return True
    waited_s = view.at - (rollout.decided_at or view.now).timestamp()
    if rollout.state == S.ROLLING_BACK and waited_s >= known.policy.ack_deadline_s:
        why = f": {ack.error.rstrip('.')}" if ack.error else ""
        said = f"The gateways have not acknowledged weight 0 for {waited_s:.0f} s{why}"
        note_stuck(rollout, said, fence=view.fence)
        log.error("rollback_stuck", rollout=rollout.pk, waited_s=round(waited_s, 1), error=ack.error)
    return False


def _route_of(rollout: Rollout, view: WorldState) -> tuple[Route | None, Ack]:
    route = view.routes.get((rollout.environment_id, rollout.model_id))
    return route, view.acks[route.pk] if route is not None else Ack(False, None, "")


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
