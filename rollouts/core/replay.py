"""A rollout walked through the very functions that the engine uses, from counts alone: simulations, recorded and stored histories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rollouts.core.counter_deltas import Arms, Counts, Reading
from rollouts.core.decide import decide
from rollouts.core.decision import TAKES_BACK, Action, Decision
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.headroom import Headroom
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import FULL_BP, Policy, Source
from rollouts.core.rules.table import INPUTS
from rollouts.core.snapshot import Desired, Identity, Observed, People
from rollouts.core.stage_evidence import take_snapshot
from rollouts.core.tick_history import OpenSegment, TickContext, TickRecord, stage_name

#: Given the tick and the candidate's weight in basis points: what both arms counted in this tick; None ends the story.
Feed = Callable[[int, int], Arms | None]


@dataclass(frozen=True)
class Walk:
    """State of a replayed rollout after a tick."""

    tick: int
    state: RolloutState
    step_index: int
    weight_bp: int
    decision: Decision
    judged: tuple[Judged, ...] = ()  # every guard's evidence, in the policy's order


def walk(
    policy: Policy, feed: Feed, *, has_stable: bool = True, tick_s: float = 1.0, before: Sequence[Arms] = ()
) -> Iterator[Walk]:
    """Every tick of a rollout whose gateways acknowledge at once, from its first step until it is promoted or its traffic is
    taken away.

    `before`: counts, tick by tick, during preparation. Ticks are numbered from the first step on.
    """
    policy = policy.facing(has_stable=has_stable)
    state, index, weight, started = RolloutState.SHIFTING, 0, policy.steps[0].weight_bp, len(before) * tick_s
    total, tick = Arms(), 0
    identity = Identity(has_stable=has_stable)
    engine_state = EngineState(readings={"gateway": Reading("one", 0.0, total.candidate, total.stable)})

    def updated(news: Arms) -> EngineState:
        nonlocal total, tick
        total, tick = total + news, tick + 1
        reading = Reading("one", tick * tick_s, total.candidate, total.stable)
        return update_state(
            engine_state, tick=tick, readings={"gateway": reading}, policy=policy, has_stable=has_stable
        )

    for news in before:
        engine_state = updated(news)
    engine_state = engine_state.entering(f"{state}:{index}", started, policy).acknowledged(started)
    while (more := feed(tick + 1 - len(before), weight)) is not None:
        engine_state = updated(more)
        now = tick * tick_s
        desired = Desired(state, step_index=index, weight_bp=weight)
        observed = Observed(now, step_started_at=started)
        snapshot = take_snapshot(policy, identity, desired, observed, engine_state)
        decision = decide(snapshot)
        if decision.action in {Action.ADVANCE, Action.BAKE}:
            is_baking = decision.action is Action.BAKE
            state = RolloutState.BAKING if is_baking else state
            index += not is_baking
            weight = policy.bake.weight_bp if is_baking else policy.steps[index].weight_bp
            started = now
            engine_state = engine_state.entering(f"{state}:{index}", now, policy).acknowledged(now)
        yield Walk(tick - len(before), state, index, weight, decision, snapshot.evidence.judged)
        if decision.action in TAKES_BACK | {Action.PROMOTE, Action.PAUSE}:
            return


# --- stored rollouts --------------------------------------------------------------------------------------------------


def uncounted(history: Iterable[TickRecord], policy: Policy) -> tuple[str, ...]:
    """The counters that the policy's guards rest on and that were not counted in these rows. Replay finds nothing bad there."""
    wanted = {name for guard in policy.guards if guard.source is Source.GATEWAY for name in (guard.name, *guard.points)}
    wanted |= {guard.name for guard in policy.guards if guard.source is not Source.GATEWAY}
    found: set[str] = set()
    for row in history:
        found |= {*row.arms.candidate.bad, *row.arms.stable.bad, *row.external}
    return tuple(sorted(wanted - found))


def replay(history: Iterable[TickRecord], policy: Policy, *, has_stable: bool = True) -> Iterator[Walk]:
    """The policy's decision at each tick of a stored rollout, whose weights stay as they were.

    `history`: its rows, the oldest first. State and weight are those that really were: a policy that would have rolled
    back at some tick is still asked about the ticks after it. Approvals count as given. Under the rollout's own policy
    the decisions are the engine's own while every row stands for one tick. Two things are told apart no longer: the gateways,
    whose counts are added up (all are waited for while answers are on their way at one), and why a server or a contents check
    failed. It ends at the first crossing, of the policy or of the stored rollout: what followed has no traffic that either had.
    """
    policy = policy.facing(has_stable=has_stable)
    rollout = ReplayedRollout(policy, has_stable)
    for row in history:
        if row.mark.state == RolloutState.SECOND_LOOK or row.mark.look > 1:
            return
        walk_here = rollout.after(row)
        yield walk_here
        if walk_here.decision.action is Action.WITHDRAW:
            return


class ReplayedRollout:
    """The replayed rollout between two rows."""

    def __init__(self, policy: Policy, has_stable: bool) -> None:
        self.policy, self.identity = policy, Identity(has_stable=has_stable)
        self.people = People(approvals=policy.approvals)
        self.engine_state = EngineState(readings={"gateway": Reading("one", 0.0, Counts(), Counts())})
        self.external: dict[str, Reading] = {}
        self.history = OpenSegment()
        self.mark = TickContext()

    def after(self, row: TickRecord) -> Walk:
        mark = row.mark
        if self.identity.has_stable and _has_taken_over(mark):
            self.policy = self.policy.facing(has_stable=False)
            self.identity = replace(self.identity, has_stable=False, displaced_name="stable")
        state, paused_in = RolloutState(mark.state), RolloutState(mark.paused_in or RolloutState.SHIFTING)
        external = self._external(row)
        tick = evaluate(
            TickInput(
                number=row.tick,
                policy=self.policy.at_look(mark.look),
                identity=self.identity,
                desired=Desired(
                    state, paused_in, mark.step_index, mark.weight_bp, mark.look, is_promoting=mark.is_promoting
                ),
                observed=self._observed(row, stage_name(state, paused_in, mark.step_index, mark.weight_bp)),
                engine_state=self.engine_state,
                history=self.history,
                people=replace(self.people, promote_now=mark.promote_now),
                readings=self._readings(row),
                external=external,
            ),
            gone_over_s=-1.0,  # the row names the missing arm, so there is no wait
        )
        self.engine_state, self.history, self.mark = tick.engine_state, tick.history, mark
        return Walk(row.tick, state, mark.step_index, mark.weight_bp, tick.decision, tick.snapshot.evidence.judged)

    def _readings(self, row: TickRecord) -> dict[str, Reading]:
        if row.read_at is None:
            return {}
        before = self.engine_state.readings["gateway"]
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
                known = {**self.engine_state.external, name: before}
                self.engine_state = replace(self.engine_state, external=known)
            arms = Arms(before.candidate, before.stable) + news
            found[name] = self.external[name] = Reading("one", row.at, arms.candidate, arms.stable)
        return found

    def _observed(self, row: TickRecord, stage: str) -> Observed:
        mark = row.mark
        is_new_stage = stage != self.engine_state.stage
        has_begun = mark.step_started_at is not None and (is_new_stage or self.mark.step_started_at is None)
        return Observed(
            row.at,
            is_acknowledged=mark.is_acknowledged,
            is_newly_acknowledged=has_begun,
            step_started_at=mark.step_started_at,
            total_s=row.at - (self.history.began_at or row.at),
            candidate_servers=int(mark.lost not in {"candidate", "both"}),
            stable_servers=int(mark.lost not in {"stable", "both"}),
            server_since=mark.server_since,
            problem=mark.problem,
            hardware=mark.hardware,
            headroom=Headroom.from_json(mark.room),
            inputs={one.name: one.from_json(mark.inputs[one.name]) for one in INPUTS if one.name in mark.inputs},
            displaced_servers=int(bool(self.identity.displaced_name) and mark.lost not in {"stable", "both"}),
        )


def _has_taken_over(mark: TickContext) -> bool:
    """Whether the candidate has the place of a stable release that is gone: beside one it never has all traffic before the promotion."""
    return mark.weight_bp == FULL_BP and not mark.is_promoting
