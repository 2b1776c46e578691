"""The snapshot of a tick, from the engine's state and from the facts that the tick observed."""

from __future__ import annotations

from dataclasses import replace

from rollouts.core.counter_deltas import ERRORS, GIVEN_UP, SHED
from rollouts.core.engine_state import EngineState
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.judged import Judged, judge_guard
from rollouts.core.policy import Policy, Source
from rollouts.core.request_mix import SIZES, mix_of, mix_of_classes
from rollouts.core.snapshot import NOBODY, Desired, Identity, Observed, People, Snapshot, StageEvidence


def judged_all(state: EngineState, policy: Policy, *, has_stable: bool) -> tuple[Judged, ...]:
    """Every guard of the policy, in its order."""
    return tuple(
        judge_guard(
            guard, state.watches.get(guard.name, GuardTracker()), has_stable=has_stable, bar_fine=policy.bar_fine
        )
        for guard in policy.guards
    )


def take_snapshot(
    policy: Policy,
    identity: Identity,
    desired: Desired,
    observed: Observed,
    state: EngineState,
    *,
    people: People = NOBODY,
    gone_over_s: float = 0.0,
) -> Snapshot:
    """The snapshot of a tick after its readings. The engine, replays and simulations all build theirs here.

    `gone_over_s`: a candidate without a server is gone when it has had none for longer than this; one whose last attempts
    failed, at once.
    """
    evidence = _evidence(policy, identity, observed, state)
    observed = replace(observed, gone_over_s=gone_over_s)
    return Snapshot(policy, identity, desired, observed, evidence, state.rules, people)


def _evidence(policy: Policy, identity: Identity, observed: Observed, state: EngineState) -> StageEvidence:
    step, settled, now = state.step, state.settled, observed.now
    candidate, stable = step.candidate, step.stable
    began_at = state.commanded_at if observed.step_started_at is None else observed.step_started_at
    return StageEvidence(
        judged=judged_all(state, policy, has_stable=identity.has_stable),
        trackers=state.watches,
        attempts=state.total.candidate.attempts,
        usual_frac=state.total.stable.bad.get(ERRORS, 0) / max(1, state.total.stable.attempts),
        unacknowledged_s=now - state.commanded_at if state.commanded_at else 0.0,
        step_attempts=candidate.attempts,
        routed_candidate=candidate.routed,
        routed_stable=stable.routed,
        settled_candidate=settled.candidate.routed,
        settled_stable=settled.stable.routed,
        given_up_candidate=settled.candidate.bad.get(GIVEN_UP, 0),
        given_up_stable=settled.stable.bad.get(GIVEN_UP, 0),
        shed_candidate=candidate.bad.get(SHED, 0),
        shed_stable=stable.bad.get(SHED, 0),
        quiet_s=_since(now, state.candidate_seen_at) or 0.0,
        silent_s={
            guard.name: _since(now, _latest(state.watches.get(guard.name, GuardTracker()).seen_at, began_at)) or 0.0
            for guard in policy.guards
            if guard.source is not Source.GATEWAY
        },
        mix=mix_of(candidate.bad, candidate.routed, stable.bad, stable.routed, SIZES),
        classes=mix_of_classes(candidate.bad, candidate.attempts, stable.bad, stable.attempts),
    )


def _since(now: float, at: float | None) -> float | None:
    return None if at is None else max(0.0, now - at)


def _latest(*instants: float | None) -> float | None:
    return max((one for one in instants if one is not None), default=None)
