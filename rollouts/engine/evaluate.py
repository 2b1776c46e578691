"""One rollout's tick: what was seen and what is to be done, before anything of it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from accounts.core.errors import DomainError
from rollouts.actions.engine_effects import ask_for_candidate, write_route
from rollouts.actions.start import report_problem
from rollouts.actions.tick_records import Tick
from rollouts.core.counter_deltas import Arms, Reading, difference
from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import Source
from rollouts.core.snapshot import Snapshot, counted
from rollouts.core.tick_history import TickContext, TickRecord, stage_name
from rollouts.engine.gateway_counters import CounterSnapshot
from rollouts.engine.world import RolloutEntry, Serving, WorldState
from rollouts.models import Rollout
from rollouts.queries.prober_tallies import STALE_S
from serving.actions.routes import Ack, acknowledged
from serving.core.hardware import difference as hardware_difference
from serving.core.lifecycle import DeploymentState
from serving.models import Route

S = RolloutState
#: A failed deployment is asked for again this often.
RETRY_S = 10.0
_ACKNOWLEDGED = Ack(True, None, "")


def judge(
    known: RolloutEntry,
    view: WorldState,
    seen: CounterSnapshot,
    external: Mapping[str, Reading | str],
    *,
    gone_over_s: float,
) -> Tick:
    """The tick of a rollout that has one. Writes only what asks others for something: a route that is not as the
    rollout's row wants it, and the candidate's deployment.

    `external`: by guard that counts in Prometheus, its reading or why there is none. `gone_over_s`: a candidate without a
    server is gone when it still has none after this long; one that failed before, at once.
    """
    rollout, at, before = known.rollout, view.at, known.carry
    outside, problems = _elsewhere(known, view, external)
    is_live = rollout.state in LIVE
    carry = before.entering(_stage(rollout), at, known.policy) if is_live else before
    carry = update_state(
        carry,
        tick=known.next_tick,
        readings=seen.readings,
        policy=known.policy,
        has_stable=rollout.stable_id is not None,
        external=outside,
    )
    arms = view.serving_at(known.places[0]), view.serving_at(known.places[1])
    carry = carry.blinded(at, is_blind=bool(seen.problem)).met_server(arms[0].newest_at)
    if not arms[0].count or carry.gone_since is not None:
        carry = carry.looked_for_servers(at, arms[0].count)
    ack = _asserted(rollout, carry, view) if is_live else _ACKNOWLEDGED
    acked_at = view.now if is_live and ack.all_acked and rollout.step_started_at is None else None
    if acked_at is not None:
        carry = carry.acknowledged(at)
    began_at = known.history.began_at if known.history.began_at is not None or not is_live else at
    # One look without a server may be a slow probe; a later one, or failed attempts before it, is not.
    is_gone = carry.gone_since is not None and (carry.has_failed or at - carry.gone_since > gone_over_s)
    snapshot = _snapshot(
        known, view, seen, carry, arms, ack, acked_at, is_gone=is_gone, problems=problems, began_at=began_at
    )
    if rollout.state == S.PREPARING:
        snapshot, carry = _prepared(known, view, snapshot, carry, arms)
    snapshot = counted(snapshot, carry)
    decision = decide(snapshot)
    snapshot, decision = _checked(known, view, snapshot, decision)
    row = _row(known, view, seen, carry, snapshot, outside)
    carry = carry.forgetting(str(decision.facts["forget"])) if "forget" in decision.facts else carry
    history = known.history if known.history.began_at == began_at else replace(known.history, began_at=began_at)
    return Tick(
        rollout, known.policy, carry, snapshot, decision, view.fence, view.now, known.next_tick, acked_at, history, row
    )


def _checked(known: RolloutEntry, view: WorldState, snapshot: Snapshot, decision: Any) -> tuple[Snapshot, Any]:
    """What takes a query of its own is asked only where the decision rests on it: approvals, and the pinned report."""
    rollout = known.rollout
    if decision.code is Code.AWAITING_APPROVAL:
        given = view.approvals_of(rollout)
        if given:
            snapshot = replace(snapshot, approvals=given)
            decision = decide(snapshot)
    if decision.action in {Action.START, Action.SHADOW} and rollout.state == S.PREPARING:
        known.report_problem = report_problem(rollout.candidate, rollout.environment, rollout.report)
        if known.report_problem:
            snapshot = replace(snapshot, report_problem=known.report_problem)
            decision = decide(snapshot)
    return snapshot, decision


def _elsewhere(
    known: RolloutEntry, view: WorldState, external: Mapping[str, Reading | str]
) -> tuple[dict[str, Reading], dict[str, str]]:
    """What is counted elsewhere than in gateways, by guard, and why a source says nothing."""
    found: dict[str, Reading] = {}
    problems: dict[str, str] = {}
    for guard in known.policy.guards:
        if guard.source is Source.PROMETHEUS:
            one = external.get(guard.name, "its counters have not been read yet")
            if isinstance(one, str):
                problems[guard.name] = one
            else:
                found[guard.name] = one
        elif guard.source is Source.PROBER:
            reading = view.wrong.get(known.rollout.pk)
            if reading is not None:
                found[guard.name] = reading
            if reading is None or view.at - reading.at > STALE_S:
                problems[guard.name] = "nobody compares answers: no prober has counted for over 5 s"
    return found, problems


def _stage(rollout: Rollout) -> str:
    return stage_name(rollout.state, rollout.resume_state or S.SHIFTING, rollout.step_index, rollout.weight_bp)


def _asserted(rollout: Rollout, carry: EngineState, view: WorldState) -> Ack:
    """Writes the route that this rollout's row wants, should anything else stand there; else who follows it."""
    route = view.routes.get((rollout.environment_id, rollout.model_id))
    if route is not None and route.fence == view.fence and _is_as_wanted(route, rollout, carry):
        return view.acks[route.pk]
    write_route(rollout, rollout.weight_bp, fence=view.fence, reason=rollout.reason, is_promoting=carry.is_promoting)
    return acknowledged(Route.objects.get(environment_id=rollout.environment_id, model_id=rollout.model_id))


def _is_as_wanted(route: Route, rollout: Rollout, carry: EngineState) -> bool:
    if carry.is_promoting or rollout.stable_id is None:
        wanted: tuple[Any, ...] = (rollout.candidate_id, None, 0, 0)
    else:
        wanted = (rollout.stable_id, rollout.candidate_id, rollout.weight_bp, rollout.mirror_bp)
    return (route.stable_id, route.candidate_id, route.candidate_bp, route.mirror_bp) == wanted


def _snapshot(
    known: RolloutEntry,
    view: WorldState,
    seen: CounterSnapshot,
    carry: EngineState,
    arms: tuple[Serving, Serving],
    ack: Ack,
    acked_at: datetime | None,
    *,
    is_gone: bool,
    problems: Mapping[str, str],
    began_at: float | None,
) -> Snapshot:
    rollout, at = known.rollout, view.at
    step_started_at = acked_at or rollout.step_started_at
    return Snapshot(
        state=S(rollout.state),
        policy=known.policy,
        now=at,
        has_stable=rollout.stable_id is not None,
        candidate_name=rollout.candidate.name,
        stable_name=rollout.stable.name if rollout.stable else "nothing",
        step_index=rollout.step_index,
        paused_in=S(rollout.resume_state or S.SHIFTING),
        commanded_bp=rollout.weight_bp,
        is_acknowledged=ack.all_acked,
        ack_error=ack.error,
        unacknowledged_s=at - carry.commanded_at if carry.commanded_at else 0.0,
        step_started_at=step_started_at.timestamp() if step_started_at else None,
        candidate_servers=0 if is_gone else max(1, arms[0].count),
        stable_servers=arms[1].count,
        problem=str(seen.problem),
        problem_sentence=seen.sentence,
        source_problems=problems,
        total_s=at - began_at if began_at is not None else 0.0,
        is_promoting=carry.is_promoting,
        promote_now=rollout.promote_now,
        hardware=_hardware(rollout, view, arms),
        digest_mismatch=_other_contents(rollout, view, arms[0]),
    )


def _other_contents(rollout: Rollout, view: WorldState, candidate: Serving) -> str:
    if rollout.candidate_id in view.tampered:
        return f"The stored manifest of {rollout.candidate.name} does not match its digest."
    if candidate.has_drifted:
        return f"Files under a server of {rollout.candidate.name} are not those that were sealed."
    return ""


def _hardware(rollout: Rollout, view: WorldState, arms: tuple[Serving, Serving]) -> str:
    nodes = (arms[0].nodes, arms[1].nodes)
    if nodes[0] == nodes[1] or rollout.stable is None:
        return ""
    facts = [[view.nodes.get(name, {}) for name in sorted(one)] for one in nodes]
    return hardware_difference(*facts, names=(rollout.candidate.name, rollout.stable.name))


def _prepared(
    known: RolloutEntry, view: WorldState, snapshot: Snapshot, carry: EngineState, arms: tuple[Serving, Serving]
) -> tuple[Snapshot, EngineState]:
    """Asks for the candidate's deployment, and tells how far it is."""
    rollout, problem, at = known.rollout, "", view.at
    deployment = view.deployments.get(known.places[0])
    is_retry_due = carry.asked_at is None or at - carry.asked_at >= RETRY_S
    has_failed = deployment is not None and deployment.state == DeploymentState.FAILED
    if deployment is None or not deployment.is_wanted or (has_failed and is_retry_due):
        carry = replace(carry, asked_at=at)
        try:
            deployment = ask_for_candidate(rollout, fence=view.fence)
        except DomainError as error:
            problem = error.message
    if not problem and deployment is not None and deployment.state == DeploymentState.FAILED:
        problem = f"Its last try failed: {deployment.reason}"
    if known.report_problem is None:
        known.report_problem = report_problem(rollout.candidate, rollout.environment, rollout.report)
    prepared = replace(
        snapshot,
        waited_s=at - (rollout.started_at or rollout.created_at).timestamp(),
        is_candidate_ready=arms[0].count > 0,
        is_stable_ready=rollout.stable_id is None or arms[1].count > 0,
        deployment_problem=problem,
        report_problem=known.report_problem,
    )
    return prepared, carry


def _row(
    known: RolloutEntry,
    view: WorldState,
    seen: CounterSnapshot,
    carry: EngineState,
    s: Snapshot,
    outside: Mapping[str, Reading],
) -> TickRecord:
    """The tick for the history."""
    lost = [name for name, count in (("candidate", s.candidate_servers), ("stable", s.stable_servers)) if count == 0]
    mark = TickContext(
        state=str(s.state),
        step_index=s.step_index,
        weight_bp=s.commanded_bp,
        paused_in=str(s.paused_in) if s.state is S.PAUSED else "",
        is_acknowledged=s.is_acknowledged,
        step_started_at=s.step_started_at,
        is_promoting=s.is_promoting,
        promote_now=s.promote_now,
        problem=s.problem,
        lost="both" if len(lost) == 2 else "".join(lost),
        server_since=carry.server_since,
        hardware=s.hardware,
        is_settling=any(not carry.readings.get(name, read).is_settled for name, read in seen.readings.items()),
    )
    external = {}
    for name, reading in outside.items():
        news = difference(known.carry.external.get(name), reading)
        external[name] = Arms(news.candidate, news.stable)
    read_at = carry.read_at if seen.readings else None
    return TickRecord(mark, known.next_tick, view.at, read_at, carry.last, external)
