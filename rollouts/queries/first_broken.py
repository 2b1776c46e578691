"""When the first broken request was asked: the start of a rollback's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rollouts.core.tick import Tick
from rollouts.models import Rollout
from serving.traffic.queries.request_examples import candidates_own
from serving.traffic.queries.time_limits import limits_of

#: A gateway's counters show an attempt this long after its end at the latest.
_COUNTED_WITHIN = timedelta(seconds=0.5)


def counted_after(tick: Tick) -> datetime | None:
    """Returns the last reading before the fault behind this decision was counted. `first_asked` replaces it at the rollback's end."""
    guard = tick.decision.guard or "errors"
    watch = tick.engine_state.watches.get(guard)
    at = watch.first_bad_at if watch and watch.first_bad_at is not None else tick.engine_state.read_at
    if at is None or tick.decision.breach is None:
        return None
    return datetime.fromtimestamp(at, UTC)


def first_asked(rollout: Rollout) -> datetime | None:
    """Returns the start of the candidate's first bad request, or `counted_after` if no gateway logged an earlier one.

    Gateways count attempts at their end, so a hung attempt began before that reading. They log the start and the duration of
    failed and slow requests. The first bad request is among those that ended after the reading.
    """
    at = rollout.first_bad_at
    if rollout.is_withdrawn:
        text = rollout.crossings[-1]["first_bad_at"]
        at = text and datetime.fromisoformat(text)
    if at is None:
        return None
    since = max(rollout.created_at, at - timedelta(seconds=limits_of(rollout.model).timeout_s))
    for began_at, took_ms in candidates_own(rollout.environment_id, rollout.candidate_id, since, at):
        if began_at + timedelta(milliseconds=took_ms) >= at - _COUNTED_WITHIN:
            return began_at
    return at
