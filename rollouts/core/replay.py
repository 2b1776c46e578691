"""A rollout walked through the very functions that the engine uses, from counts alone: for simulations and recorded histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rollouts.core.carry import Arms, Carry, absorb
from rollouts.core.counting import Reading
from rollouts.core.decide import Action, Decision, decide
from rollouts.core.lifecycle import RolloutState
from rollouts.core.plan import Policy
from rollouts.core.snapshot import Snapshot, judged_all

#: Given the tick and the candidate's weight in basis points: what both arms counted in this tick; None ends the story.
Feed = Callable[[int, int], Arms | None]


@dataclass(frozen=True)
class Walk:
    """Where a replayed rollout stands after a tick."""

    tick: int
    state: RolloutState
    step_index: int
    weight_bp: int
    decision: Decision


def walk(policy: Policy, feed: Feed, *, has_stable: bool = True, tick_s: float = 1.0) -> Iterator[Walk]:
    """Every tick of a rollout whose gateways acknowledge at once, from its first step until it is promoted or rolled back."""
    policy = policy.facing(has_stable=has_stable)
    carry, state, index, weight, started = Carry(), RolloutState.SHIFTING, 0, policy.steps[0].weight_bp, 0.0
    total, tick = Arms(), 0
    while (news := feed(tick + 1, weight)) is not None:
        tick += 1
        now = tick * tick_s
        total = total + news
        carry = carry.entering(f"{state}:{index}", now)
        if not carry.readings:
            carry = replace(carry, readings={"gateway": Reading("one", 0.0, Arms().candidate, Arms().stable)})
        reading = Reading("one", now, total.candidate, total.stable)
        carry = absorb(carry, tick=tick, readings={"gateway": reading}, policy=policy, has_stable=has_stable)
        decision = decide(_snapshot(policy, carry, state, index, weight, now, started, has_stable))
        if decision.action in {Action.ADVANCE, Action.BAKE}:
            is_baking = decision.action is Action.BAKE
            state = RolloutState.BAKING if is_baking else state
            index += not is_baking
            weight = policy.bake.weight_bp if is_baking else policy.steps[index].weight_bp
            started = now
        yield Walk(tick, state, index, weight, decision)
        if decision.action in {Action.PROMOTE, Action.ROLL_BACK, Action.PAUSE}:
            return


def _snapshot(
    policy: Policy,
    carry: Carry,
    state: RolloutState,
    index: int,
    weight_bp: int,
    now: float,
    started: float,
    has_stable: bool,
) -> Snapshot:
    step = carry.step
    return Snapshot(
        state=state,
        policy=policy,
        now=now,
        has_stable=has_stable,
        step_index=index,
        commanded_bp=weight_bp,
        step_started_at=started,
        judged=judged_all(carry, policy, has_stable=has_stable),
        step_attempts=step.candidate.attempts,
        step_stable_attempts=step.stable.attempts,
        routed_candidate=step.candidate.routed,
        routed_stable=step.stable.routed,
        all_failing=carry.all_failing,
        is_stable_failing=carry.is_stable_failing,
        quiet_s=now - max(carry.candidate_seen_at or 0.0, started),
    )
