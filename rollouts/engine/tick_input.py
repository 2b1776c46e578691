"""From rows and readings to the plain values of a tick's evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rollouts.core.counter_deltas import Reading
from rollouts.core.evaluate import TickInput
from rollouts.core.headroom import Headroom
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.odd_replica import ReplicaTally
from rollouts.core.policy import Source
from rollouts.core.rules.replica_differs import CandidateTallies, ReplicaDiffers
from rollouts.core.rules.second_look import crossing_words
from rollouts.core.rules.stable_replica import StableReplica, StableTallies
from rollouts.core.snapshot import Desired, Identity, Observed, People
from rollouts.engine.desired_state import DesiredState
from rollouts.engine.gateway_counters import CounterSnapshot
from rollouts.engine.world import RolloutEntry, WorldState
from rollouts.models import Rollout
from rollouts.queries.headroom import proven_rates
from rollouts.queries.obstacles import report_problem
from rollouts.queries.prober_tallies import STALE_S
from rollouts.queries.stable_odd import stable_odd_of
from serving.targets.core.hardware import difference as hardware_difference
from serving.traffic.queries.endpoints import ReleaseStanding

S = RolloutState


def tick_input(
    entry: RolloutEntry,
    world: WorldState,
    counters: CounterSnapshot,
    prometheus: Mapping[str, Reading | str],
    desired: DesiredState,
) -> TickInput:
    """Input of the rollout's next tick.

    `prometheus`: by guard that counts there, its reading or why there is none. `desired`: what `ensure_desired_state`
    found. Looks at the pinned report, which may verify its signature, and for stable's odd replica; besides, writes and reads nothing.
    """
    rollout = entry.rollout
    external, source_problems = _external(entry, world, prometheus)
    serving = world.serving_at(entry.places[0]), world.serving_at(entry.places[1])
    return TickInput(
        number=entry.next_tick,
        policy=entry.policy.at_look(rollout.look),
        identity=Identity(
            rollout.pk,
            has_stable=rollout.stable_id is not None,
            candidate_name=rollout.candidate.name,
            stable_name=rollout.stable.name if rollout.stable else "nothing",
            displaced_name=rollout.displaced.name if rollout.displaced else "",
        ),
        desired=Desired(
            S(rollout.state),
            S(rollout.resume_state or S.SHIFTING),
            rollout.step_index,
            rollout.weight_bp,
            rollout.look,
            S(rollout.crossings[-1]["state"]) if rollout.crossings else S.SHIFTING,
            crossing_words(rollout.crossings[-1]) if rollout.crossings else "",
            entry.engine_state.is_promoting,
            is_begun_by_hand=rollout.is_withdrawn and bool(rollout.crossings[-1].get("begun_by")),
        ),
        observed=_observed(entry, world, counters, desired, serving, source_problems),
        engine_state=replace(entry.engine_state, asked_at=desired.asked_at),
        history=entry.history,
        people=People(world.approvals.get(rollout.pk, {}), rollout.promote_now, _report_problem(entry, serving[0])),
        readings=counters.readings,
        external=external,
    )


def _observed(
    entry: RolloutEntry,
    world: WorldState,
    counters: CounterSnapshot,
    desired: DesiredState,
    serving: tuple[ReleaseStanding, ReleaseStanding],
    source_problems: Mapping[str, str],
) -> Observed:
    rollout, at, began_at = entry.rollout, world.at, entry.history.began_at
    is_first = rollout.state in LIVE and desired.ack.all_acked and rollout.step_started_at is None
    started_at = rollout.step_started_at.timestamp() if rollout.step_started_at else None
    return Observed(
        at,
        is_acknowledged=desired.ack.all_acked,
        is_newly_acknowledged=is_first,
        is_confirmed=not rollout.is_withdrawn or rollout.crossings[-1]["confirmed_at"] is not None,
        ack_error=desired.ack.error,
        step_started_at=at if is_first else started_at,
        total_s=at - began_at if began_at is not None else 0.0,
        candidate_servers=serving[0].count,
        stable_servers=serving[1].count,
        stable_reported=serving[1].reported,
        stable_start_s=entry.stable_start_s,
        is_stable_asleep=desired.is_stable_asleep,
        displaced_servers=world.serving_at(entry.displaced).count,
        server_since=serving[0].newest_at,
        digest_mismatch=_digest_mismatch(rollout, world, serving[0]),
        hardware=_hardware(rollout, serving),
        problem=str(counters.problem),
        problem_sentence=counters.sentence,
        source_problems=source_problems,
        waited_s=at - (rollout.started_at or rollout.created_at).timestamp(),
        replica_problem=desired.replica_problem,
        failed_to_load=desired.load_failure,
        headroom=_headroom(entry, serving),
    ).telling(
        CandidateTallies(is_replacing=_is_replacing(entry, serving[0])),
        StableTallies(is_replacing=_is_stable_replacing(entry, serving[1])),
    )


def _is_replacing(entry: RolloutEntry, candidate: ReleaseStanding) -> bool:
    aside = entry.engine_state.of(ReplicaDiffers)
    return bool(aside.replica) and candidate.count < min(aside.servers, candidate.wanted)


def _is_stable_replacing(entry: RolloutEntry, stable: ReleaseStanding) -> bool:
    """Looks for the odd replica only while the rollout is held for it."""
    odd, rollout = entry.engine_state.of(StableReplica), entry.rollout
    if not odd.replica or odd.is_renewed or rollout.stable_id is None:
        return False
    found = stable_odd_of(rollout, odd)
    answers = found is not None and not found.is_set_aside
    return answers or stable.count < min(odd.servers, stable.wanted)


def _headroom(entry: RolloutEntry, serving: tuple[ReleaseStanding, ReleaseStanding]) -> Headroom:
    candidate, stable = serving
    whole = stable if entry.places[1] is not None else candidate
    proven = entry.proven or (None, None)
    why = entry.surge.why if entry.surge is not None else ""
    if not why and (silent := candidate.count - candidate.heard):
        are = "1 more is on a node that was" if silent == 1 else f"{silent} more are on nodes that were"
        why = f"{are} not heard of lately."
    return Headroom(whole.wanted, candidate.heard, stable.heard, *proven, why=why)


def needs_a_look(entry: RolloutEntry) -> bool:
    """Whether a tick that opens may rest on more than `tick_input` looked at."""
    return entry.proven is None


def looked_closer(entry: RolloutEntry, given: TickInput) -> TickInput:
    """The same with the proven rates of both arms, for a tick that opens. Reads reports once in the entry's life."""
    entry.proven = entry.proven or proven_rates(entry.rollout)
    headroom = with_proofs(given.observed.headroom, entry)
    return replace(given, observed=replace(given.observed, headroom=headroom))


def with_tallies(entry: RolloutEntry, given: TickInput, tallies: Mapping[str, ReplicaTally]) -> TickInput:
    """The same with what each of the candidate's servers counted, and what one is proven for, as `tallies_for` found it."""
    headroom = with_proofs(given.observed.headroom, entry)
    told = replace(given.observed.given(CandidateTallies), tallies=tallies)
    return replace(given, observed=replace(given.observed, headroom=headroom).telling(told))


def with_proofs(headroom: Headroom, entry: RolloutEntry) -> Headroom:
    candidate, stable = entry.proven or (None, None)
    return replace(headroom, proven_candidate=candidate, proven_stable=stable)


def _external(
    entry: RolloutEntry, world: WorldState, prometheus: Mapping[str, Reading | str]
) -> tuple[dict[str, Reading], dict[str, str]]:
    """Counts from sources other than gateways, by guard, and their problems."""
    found: dict[str, Reading] = {}
    problems: dict[str, str] = {}
    for guard in entry.policy.guards:
        if guard.source is Source.PROMETHEUS:
            one = prometheus.get(guard.name, "its counters have not been read yet")
            if isinstance(one, str):
                problems[guard.name] = one
            else:
                found[guard.name] = one
        elif guard.source is Source.PROBER:
            reading = world.wrong.get(entry.rollout.pk)
            if reading is not None:
                found[guard.name] = reading
            if reading is None or world.at - reading.at > STALE_S:
                problems[guard.name] = "answers are not compared: no prober has counted for over 5 s"
    return found, problems


def _report_problem(entry: RolloutEntry, candidate: ReleaseStanding) -> str:
    """Looked at once while the candidate is being prepared, and again in every tick that may send it traffic."""
    rollout = entry.rollout
    if rollout.state != S.PREPARING and not rollout.is_withdrawn:
        return ""
    if entry.report_problem is None or candidate.count:
        entry.report_problem = report_problem(rollout.candidate, rollout.environment, rollout.report)
    return entry.report_problem


def _digest_mismatch(rollout: Rollout, world: WorldState, candidate: ReleaseStanding) -> str:
    if rollout.candidate_id in world.tampered:
        return f"The stored manifest of {rollout.candidate.name} does not match its digest."
    if candidate.has_drifted:
        return f"Files under a server of {rollout.candidate.name} are not those that were sealed."
    return ""


def _hardware(rollout: Rollout, serving: tuple[ReleaseStanding, ReleaseStanding]) -> str:
    if rollout.stable is None:
        return ""
    facts = (serving[0].hardware, serving[1].hardware)
    return hardware_difference(*facts, names=(rollout.candidate.name, rollout.stable.name))
