"""One tick's evaluation: readings into the engine's state, that and what is seen into a snapshot, that into a decision.

Pure: no database, no clock. The engine calls it with what it has read; a replay with what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rollouts.core.commands import Command, EjectReplica, ForgetEvidence, ReplaceStable
from rollouts.core.counter_deltas import Arms, Reading, difference
from rollouts.core.decide import decide
from rollouts.core.engine_state import EngineState, StableOdd, update_state
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import Policy
from rollouts.core.second_look import is_steady
from rollouts.core.snapshot import NOBODY, Desired, Identity, Observed, People, Snapshot, take_snapshot
from rollouts.core.stable_gone import is_absent
from rollouts.core.tick import Tick
from rollouts.core.tick_history import OpenSegment, TickContext, TickRecord, stage_name


@dataclass(frozen=True)
class TickInput:
    """All that one tick of one rollout rests on."""

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
    state = _updated(given)
    if is_absent(given.observed, state.stable_unanswered or 0, given.policy.all_failing_attempts):
        given = replace(given, observed=replace(given.observed, stable_servers=0))
    if given.identity.has_stable:
        state = state.looked_for_stable(given.observed.now, given.observed.stable_servers)
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
    if given.observed.stable_replicas:
        state = replace(state, stable_looks=(state.stable_looks or 0) + 1)
    for command in decision.commands:
        state = _obeyed(state, command, given.observed)
    history = given.history
    if history.began_at is None and given.desired.state in LIVE:
        history = replace(history, began_at=given.observed.now)
    return Tick(given.number, snapshot, decision, state, history, record)


def _updated(given: TickInput) -> EngineState:
    """The engine's state with this tick's readings, and what was seen besides, in it."""
    wanted, seen, state = given.desired, given.observed, given.engine_state
    if wanted.state in LIVE:
        stage = stage_name(wanted.state, wanted.paused_in, wanted.step_index, wanted.weight_bp)
        state = state.entering(stage, seen.now, given.policy)
    state = update_state(
        state,
        tick=given.number,
        readings=given.readings,
        policy=given.policy,
        has_stable=given.identity.has_stable,
        external=given.external,
    )
    state = state.settling(seen.now).replaced(seen.now, is_replacing=seen.is_replacing)
    state = state.stable_settling(seen.now, is_replacing=seen.is_stable_replacing)
    state = state.blinded(seen.now, is_blind=bool(seen.problem)).met_server(seen.server_since)
    if seen.candidate_servers is not None and (not seen.candidate_servers or state.gone_since is not None):
        state = state.looked_for_servers(seen.now, seen.candidate_servers)
    if RolloutState.SECOND_LOOK in {wanted.state, wanted.paused_in} and seen.candidate_servers is not None:
        age_s = None if state.server_since is None else seen.now - state.server_since
        state = state.waited_for_server(seen.now, is_steady=is_steady(seen.candidate_servers, age_s))
    if wanted.state is RolloutState.PREPARING:
        state = state.preparing(seen.failed_to_load, has_server=bool(seen.candidate_servers))
    return state.acknowledged(seen.now) if seen.is_newly_acknowledged else state


def _obeyed(state: EngineState, command: Command, seen: Observed) -> EngineState:
    match command:
        case ForgetEvidence():
            return state.forgetting(command.guard)
        case EjectReplica():
            servers = seen.candidate_servers or len(seen.replicas)
            return state.setting_aside(command.replica, seen.now, servers, command.besides)
        case ReplaceStable():
            servers, deployment = (
                seen.stable_servers or len(seen.stable_replicas),
                seen.stable_deployments.get(command.replica),
            )
            odd = StableOdd(command.replica, seen.now, servers, command.is_aside, deployment=deployment)
            return replace(state, stable_odd=odd)
    return replace(state, refuses_forced=True)


def _record(given: TickInput, state: EngineState, s: Snapshot) -> TickRecord:
    """The tick for the history."""
    is_displaced_gone = bool(s.identity.displaced_name) and not s.observed.displaced_servers
    is_stable_gone = s.observed.stable_servers == 0 if s.identity.has_stable else is_displaced_gone
    arms = {"candidate": s.evidence.is_candidate_gone, "stable": is_stable_gone}
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
        server_since=state.server_since,
        hardware=s.observed.hardware,
        room=s.observed.room.as_json(),
        replicas={name: list(one) for name, one in s.observed.replicas.items()},
        is_replacing=s.observed.is_replacing,
        stable_replicas={name: list(one) for name, one in s.observed.stable_replicas.items()},
        is_stable_replacing=s.observed.is_stable_replacing,
        look=s.desired.look,
        is_settling=any(not state.readings.get(name, read).is_settled for name, read in given.readings.items()),
    )
    external = {}
    for name, reading in given.external.items():
        news = difference(given.engine_state.external.get(name), reading)
        external[name] = Arms(news.candidate, news.stable)
    read_at = state.read_at if given.readings else None
    return TickRecord(mark, given.number, s.observed.now, read_at, state.last, external)
