"""One tick's evaluation: readings into the engine's state, that and what is seen into a snapshot, that into a decision.

Pure: no database, no clock. The engine calls it with what it has read; a replay with what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rollouts.core.counter_deltas import Arms, Reading, difference
from rollouts.core.decide import decide
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import Policy
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.rules.stable_gone import StableServers, is_absent
from rollouts.core.rules.warm_up import WarmUp
from rollouts.core.snapshot import NOBODY, Desired, Identity, Observed, People, Snapshot
from rollouts.core.stage_evidence import take_snapshot
from rollouts.core.tick import Tick
from rollouts.core.tick_history import OpenSegment, TickContext, TickRecord, stage_name


@dataclass(frozen=True)
class TickInput:
    """Input of a tick of a rollout."""

    number: int  # the tick's own; each is evaluated once, in order
    policy: Policy  # as `Snapshot.policy`
    identity: Identity
    desired: Desired
    observed: Observed
    engine_state: EngineState  # as the tick before left it
    history: OpenSegment = field(default_factory=OpenSegment)  # likewise
    people: People = NOBODY
    readings: Mapping[str, Reading] = field(default_factory=dict)  # by gateway
    external: Mapping[str, Reading] = field(default_factory=dict)  # by guard that counts elsewhere


def evaluate(given: TickInput, *, gone_over_s: float) -> Tick:
    """The tick: the snapshot, its one decision, and the state that the next tick goes on from. Total; writes nothing.

    `gone_over_s`: a candidate without a server is gone when it has had none for longer than this, in seconds; one whose
    last attempts failed, at once.
    """
    state = _counted(given)
    if is_absent(given.observed, state.of(StableServers).unanswered or 0, given.policy.all_failing_attempts):
        given = replace(given, observed=replace(given.observed, stable_servers=0))
    state = state.observed(given.observed, given.desired, has_stable=given.identity.has_stable)
    if given.observed.is_newly_acknowledged:
        state = state.acknowledged(given.observed.now)
    snapshot = take_snapshot(
        given.policy,
        given.identity,
        given.desired,
        given.observed,
        state,
        people=given.people,
        gone_over_s=gone_over_s,
    )
    decision = decide(snapshot)
    record = _record(given, state, snapshot)
    state = state.obeying(decision.commands, given.observed)
    history = given.history
    if history.began_at is None and given.desired.state in LIVE:
        history = replace(history, began_at=given.observed.now)
    return Tick(given.number, snapshot, decision, state, history, record)


def _counted(given: TickInput) -> EngineState:
    """The engine's state with this tick's readings in it."""
    wanted, state = given.desired, given.engine_state
    if wanted.state in LIVE:
        stage = stage_name(wanted.state, wanted.paused_in, wanted.step_index, wanted.weight_bp)
        state = state.entering(stage, given.observed.now, given.policy)
    return update_state(
        state,
        tick=given.number,
        readings=given.readings,
        policy=given.policy,
        has_stable=given.identity.has_stable,
        external=given.external,
    )


def _record(given: TickInput, state: EngineState, s: Snapshot) -> TickRecord:
    """The tick for the history."""
    is_displaced_gone = bool(s.identity.displaced_name) and not s.observed.displaced_servers
    is_stable_gone = s.observed.stable_servers == 0 if s.identity.has_stable else is_displaced_gone
    arms = {"candidate": state.of(CandidateServers).is_gone(s.observed), "stable": is_stable_gone}
    lost = [name for name, is_gone in arms.items() if is_gone]
    mark = TickContext(
        state=str(s.desired.state),
        step_index=s.desired.step_index,
        weight_bp=s.desired.weight_bp,
        paused_in=str(s.desired.paused_in) if s.desired.state is RolloutState.PAUSED else "",
        is_acknowledged=s.observed.is_acknowledged,
        step_started_at=s.observed.step_started_at,
        is_promoting=s.desired.is_promoting,
        promote_now=s.people.promote_now,
        problem=s.observed.problem,
        lost="both" if len(lost) == 2 else "".join(lost),
        server_since=state.of(WarmUp).server_since,
        hardware=s.observed.hardware,
        room=s.observed.headroom.as_json(),
        inputs={name: told for name, one in s.observed.inputs.items() if (told := one.to_json())},
        look=s.desired.look,
        is_settling=any(not state.readings.get(name, read).is_settled for name, read in given.readings.items()),
    )
    external = {}
    for name, reading in given.external.items():
        news = difference(given.engine_state.external.get(name), reading)
        external[name] = Arms(news.candidate, news.stable)
    read_at = state.read_at if given.readings else None
    return TickRecord(mark, given.number, s.observed.now, read_at, state.last, external)
