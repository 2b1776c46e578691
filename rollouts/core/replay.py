"""A rollout walked through the very functions that the engine uses, from counts alone: for simulations and recorded histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rollouts.core.carry import Arms, Carry, absorb
from rollouts.core.counting import Reading
from rollouts.core.decide import decide
from rollouts.core.decision import Action, Decision
from rollouts.core.lifecycle import RolloutState
from rollouts.core.plan import Policy
from rollouts.core.snapshot import Snapshot, counted

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
    state, index, weight, started = RolloutState.SHIFTING, 0, policy.steps[0].weight_bp, 0.0
    total, tick = Arms(), 0
    carry = Carry(readings={"gateway": Reading("one", 0.0, total.candidate, total.stable)})
    carry = carry.entering(f"{state}:{index}", started).acknowledged(started)
    while (news := feed(tick + 1, weight)) is not None:
        tick += 1
        now = tick * tick_s
        total = total + news
        reading = Reading("one", now, total.candidate, total.stable)
        carry = absorb(carry, tick=tick, readings={"gateway": reading}, policy=policy, has_stable=has_stable)
        here = Snapshot(state, policy, now, has_stable, step_index=index, commanded_bp=weight, step_started_at=started)
        decision = decide(counted(here, carry))
        if decision.action in {Action.ADVANCE, Action.BAKE}:
            is_baking = decision.action is Action.BAKE
            state = RolloutState.BAKING if is_baking else state
            index += not is_baking
            weight = policy.bake.weight_bp if is_baking else policy.steps[index].weight_bp
            started = now
            carry = carry.entering(f"{state}:{index}", now).acknowledged(now)
        yield Walk(tick, state, index, weight, decision)
        if decision.action in {Action.PROMOTE, Action.ROLL_BACK, Action.PAUSE}:
            return
