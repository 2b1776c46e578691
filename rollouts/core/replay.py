"""A rollout walked through the very functions that the engine uses, from counts alone: simulations, recorded and stored histories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rollouts.core.counter_deltas import Arms, Counts, Reading
from rollouts.core.decide import decide
from rollouts.core.decision import Action, Decision
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Policy, Source
from rollouts.core.snapshot import Snapshot, counted
from rollouts.core.tick_history import Segment, TickContext, TickRecord, rows_of, stage_name

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


def walk(
    policy: Policy, feed: Feed, *, has_stable: bool = True, tick_s: float = 1.0, before: Sequence[Arms] = ()
) -> Iterator[Walk]:
    """Every tick of a rollout whose gateways acknowledge at once, from its first step until it is promoted or rolled back.

    `before`: what was counted, tick by tick, while the candidate was being prepared. Ticks are numbered from the first step on.
    """
    policy = policy.facing(has_stable=has_stable)
    state, index, weight, started = RolloutState.SHIFTING, 0, policy.steps[0].weight_bp, len(before) * tick_s
    total, tick = Arms(), 0
    carry = EngineState(readings={"gateway": Reading("one", 0.0, total.candidate, total.stable)})

    def absorbed(news: Arms) -> EngineState:
        nonlocal total, tick
        total, tick = total + news, tick + 1
        reading = Reading("one", tick * tick_s, total.candidate, total.stable)
        return update_state(carry, tick=tick, readings={"gateway": reading}, policy=policy, has_stable=has_stable)

    for news in before:
        carry = absorbed(news)
    carry = carry.entering(f"{state}:{index}", started, policy).acknowledged(started)
    while (more := feed(tick + 1 - len(before), weight)) is not None:
        carry = absorbed(more)
        now = tick * tick_s
        here = Snapshot(state, policy, now, has_stable, step_index=index, commanded_bp=weight, step_started_at=started)
        decision = decide(counted(here, carry))
        if decision.action in {Action.ADVANCE, Action.BAKE}:
            is_baking = decision.action is Action.BAKE
            state = RolloutState.BAKING if is_baking else state
            index += not is_baking
            weight = policy.bake.weight_bp if is_baking else policy.steps[index].weight_bp
            started = now
            carry = carry.entering(f"{state}:{index}", now, policy).acknowledged(now)
        yield Walk(tick - len(before), state, index, weight, decision)
        if decision.action in {Action.PROMOTE, Action.ROLL_BACK, Action.PAUSE}:
            return


# --- stored rollouts --------------------------------------------------------------------------------------------------


def uncounted(history: Iterable[Segment], policy: Policy) -> tuple[str, ...]:
    """The counters that the policy's guards rest on and that were not counted in this history. Replay finds nothing bad there."""
    wanted = {name for guard in policy.guards if guard.source is Source.GATEWAY for name in (guard.name, *guard.points)}
    wanted |= {guard.name for guard in policy.guards if guard.source is not Source.GATEWAY}
    found: set[str] = set()
    for block in history:
        for row in rows_of(block.first_tick, block.from_at, block.ticks):
            found |= {*row.arms.candidate.bad, *row.arms.stable.bad, *row.external}
    return tuple(sorted(wanted - found))


def replay(history: Iterable[Segment], policy: Policy, *, has_stable: bool = True) -> Iterator[Walk]:
    """What the policy would say at each tick of a stored rollout, which goes on as it went.

    `history`: its blocks, the oldest first. State and weight are those that really were: a policy that would have rolled
    back at some tick is still asked about the ticks after it. Approvals count as given. Under the rollout's own policy
    the decisions are the engine's own while every row stands for one tick. Two things are told apart no longer: the gateways,
    whose counts are added up (all are waited for while answers are on their way at one), and why a server or a contents check
    failed.
    """
    policy = policy.facing(has_stable=has_stable)
    told = _ReplayedRollout(policy, has_stable)
    for block in history:
        for row in rows_of(block.first_tick, block.from_at, block.ticks):
            yield told.after(row)


class _ReplayedRollout:
    """The replayed rollout between two rows."""

    def __init__(self, policy: Policy, has_stable: bool) -> None:
        nothing = Reading("one", 0.0, Counts(), Counts())
        self.policy, self.has_stable = policy, has_stable
        self.carry = EngineState(readings={"gateway": nothing})
        self.external: dict[str, Reading] = {}
        self.mark = TickContext()
        self.began_at: float | None = None

    def after(self, row: TickRecord) -> Walk:
        mark = row.mark
        state, paused_in = RolloutState(mark.state), RolloutState(mark.paused_in or RolloutState.SHIFTING)
        if self.began_at is None:
            self.began_at = row.at
        stage = stage_name(state, paused_in, mark.step_index, mark.weight_bp)
        is_new_stage = stage != self.carry.stage
        external = self._external(row)
        carry = update_state(
            self.carry.entering(stage, row.at, self.policy),
            tick=row.tick,
            readings=self._reading(row),
            policy=self.policy,
            has_stable=self.has_stable,
            external=external,
        )
        carry = carry.blinded(row.at, is_blind=bool(mark.problem)).met_server(mark.server_since)
        if mark.step_started_at is not None and (is_new_stage or self.mark.step_started_at is None):
            carry = carry.acknowledged(row.at)
        decision = decide(counted(self._snapshot(row, state, paused_in), carry))
        self.carry, self.mark = carry.forgetting(str(decision.facts.get("forget", ""))), mark
        return Walk(row.tick, state, mark.step_index, mark.weight_bp, decision)

    def _reading(self, row: TickRecord) -> dict[str, Reading]:
        if row.read_at is None:
            return {}
        before = self.carry.readings["gateway"]
        arms = Arms(before.candidate, before.stable) + row.arms
        # As the engine found it: a row's own instants are too coarse to find it anew.
        answer_s, since = (math.inf, row.read_at) if row.mark.is_settling else (0.0, 0.0)
        now = Reading("one", row.read_at, arms.candidate, arms.stable, answer_s=answer_s, since=since)
        return {"gateway": now}

    def _external(self, row: TickRecord) -> dict[str, Reading]:
        """Cumulative again; before the first row with counts of a guard stood zeros."""
        found = {}
        for name, news in row.external.items():
            before = self.external.get(name, Reading("one", row.at, Counts(), Counts()))
            if name not in self.external:
                self.carry = replace(self.carry, external={**self.carry.external, name: before})
            arms = Arms(before.candidate, before.stable) + news
            found[name] = self.external[name] = Reading("one", row.at, arms.candidate, arms.stable)
        return found

    def _snapshot(self, row: TickRecord, state: RolloutState, paused_in: RolloutState) -> Snapshot:
        mark = row.mark
        lost = {"candidate", "stable"} if mark.lost == "both" else {mark.lost}
        return Snapshot(
            state,
            self.policy,
            row.at,
            self.has_stable,
            step_index=mark.step_index,
            paused_in=paused_in,
            commanded_bp=mark.weight_bp,
            is_acknowledged=mark.is_acknowledged,
            unacknowledged_s=row.at - (self.carry.commanded_at or row.at),
            step_started_at=mark.step_started_at,
            candidate_servers=int("candidate" not in lost),
            stable_servers=int("stable" not in lost),
            problem=mark.problem,
            hardware=mark.hardware,
            approvals=self.policy.approvals,
            promote_now=mark.promote_now,
            total_s=row.at - (self.began_at or row.at),
            is_promoting=mark.is_promoting,
        )
