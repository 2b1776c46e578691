"""One bad replica of stable: told before a rollout opens beside it, and never where traffic is taken away."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.counter_deltas import Arms, Counts, Reading
from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code, Decision
from rollouts.core.engine_state import EngineState
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.headroom import Headroom
from rollouts.core.lifecycle import RolloutState
from rollouts.core.odd_replica import CHANCE, ReplicaTally
from rollouts.core.policy import OnUndecided, Policy
from rollouts.core.policy_schema import parse_policy
from rollouts.core.rules.replica_differs import SETTLES_S
from rollouts.core.rules.stable_replica import StableReplica, StableTallies, doubted
from rollouts.core.snapshot import Desired, Identity
from rollouts.core.step_evidence import Evidence, Part
from tests.core.test_decide import BREACHES, POLICY, judged, snapshot
from tests.support.worlds.snapshots import keeping, seen

S = RolloutState
ONE_IS_BAD = {"a:1": ReplicaTally(1, 500), "b:1": ReplicaTally(30, 500), "c:1": ReplicaTally(0, 500)}
ALIKE = {"a:1": ReplicaTally(10, 500), "b:1": ReplicaTally(11, 500), "c:1": ReplicaTally(10, 500)}
#: Proven as good as a stable that fails 2 %.
PROVEN = {"judged": (judged(0, bad_candidate=10, bad_stable=31), judged(1))}
#: Over the objective, as stable is.
BOTH = {"judged": (judged(0, bad_candidate=25, bad_stable=75, log_e_over=30.0), judged(1))}
HEADROOM = Headroom(3, candidate=3, stable=3, proven_stable=100.0)


def found(**over: Any) -> Decision:
    return decide(
        snapshot(**{"stable_replicas": ONE_IS_BAD, "stable_servers": 3, "headroom": HEADROOM, **PROVEN, **over})
    )


def test_nothing_opens_beside_a_stable_of_which_one_replica_is_bad() -> None:
    held = found()
    assert (held.action, held.code) == (Action.HOLD, Code.REPLICA_DIFFERS)
    assert held.reason == (
        "Holding at 25 %: errors of r1 are of one replica of 3: b:1, 30 of 500 attempts; the others failed 1 of 1000. "
        "Beside it r2 looks better than it is. It gets no more traffic, and another is to take its place."
    )
    assert held.facts["replace_stable"] == "b:1" and held.facts["is_aside"] and held.facts["guard"] == "errors"
    assert held.facts["stable_replica"]["own"] == [30, 500]
    assert found(stable_replicas={}).action is Action.ADVANCE  # nobody told
    assert found(state=S.BAKING, weight_bp=9500, routed_candidate=1900, routed_stable=100).code is held.code


def test_nor_is_it_excused_for_what_one_replica_of_stable_fails() -> None:
    assert found(**BOTH, stable_replicas={}).code is Code.BOTH_ARMS_BAD
    assert found(**BOTH, stable_replicas=ALIKE).code is Code.BOTH_ARMS_BAD
    assert found(**BOTH).code is Code.REPLICA_DIFFERS
    burns = judged(0, bad_candidate=25, bad_stable=75, is_stable_over=True), judged(1)
    assert found(judged=burns, stable_replicas={}).code is Code.BOTH_ARMS_BAD
    assert found(judged=burns).code is Code.REPLICA_DIFFERS


@pytest.mark.parametrize(
    "headroom",
    [
        replace(HEADROOM, proven_stable=None),  # nothing was proven
        replace(
            HEADROOM, proven_stable=9.0
        ),  # two servers are not proven for 20 requests/s, which a rollback would bring
        replace(
            HEADROOM, stable=2, proven_stable=15.0
        ),  # one of the three drains: it told what it counted, and is no way back
    ],
)
def test_where_the_others_may_not_hold_all_traffic_it_answers_until_another_does(headroom: Headroom) -> None:
    held = found(headroom=headroom)
    assert held.code is Code.REPLICA_DIFFERS and not held.facts["is_aside"]
    assert held.reason.endswith("looks better than it is. Another is to take its place.")


@pytest.mark.parametrize(("breach", "code"), BREACHES)
@pytest.mark.parametrize("waits", [{}, {"stable_odd": "b:1", "stable_odd_s": 9.0}])
def test_no_rollback_waits_for_it(breach: dict[str, Any], code: Code, waits: dict[str, Any]) -> None:
    done = found(**{**breach, **waits})
    assert (done.action, done.code) == (Action.ROLL_BACK, code)


@pytest.mark.parametrize(
    "over",
    [
        {"stable_replicas": ALIKE},
        {"stable_replicas": {"b:1": ONE_IS_BAD["b:1"]}},  # there is no other
        {"stable_replicas": {**ONE_IS_BAD, "b:1": ReplicaTally(3, 500)}},  # no more than is tolerated of a release
        {"stable_odd": "a:1", "stable_odd_s": 99.0, "is_stable_renewed": True},  # once
    ],
)
def test_else_it_goes_on(over: dict[str, Any]) -> None:
    assert found(**over).action is Action.ADVANCE


def test_what_people_open_is_not_looked_at() -> None:
    s = snapshot(state=S.BAKING, promote_now=True, weight_bp=9500, routed_candidate=1900, routed_stable=100)
    by_hand = decide(s)
    assert by_hand.code is Code.BY_HAND and doubted(s, by_hand) is None
    proven = decide(snapshot(**PROVEN))
    assert doubted(snapshot(**PROVEN), proven) is not None
    assert doubted(snapshot(**PROVEN, state=S.PAUSED), proven) is None


def test_it_waits_for_the_one_in_its_place_and_no_stages_deadline_takes_the_candidate_back_for_it() -> None:
    waits = {"stable_replicas": {}, "stable_odd": "b:1", "stable_odd_s": 20.0}
    held = found(**waits)
    assert held.code is Code.REPLICA_DIFFERS and "waiting for a replica of r1 in the place of b:1" in held.reason
    strict = replace(POLICY, on_undecided=OnUndecided.ROLL_BACK)
    late = found(**waits, policy=strict, now=900.0 + 601.0)
    assert (late.action, late.code, late.facts["is_late"]) == (Action.HOLD, Code.REPLICA_DIFFERS, True)
    told = found(policy=strict, now=900.0 + 601.0)
    assert (told.action, told.facts["replace_stable"]) == (Action.HOLD, "b:1")
    overdue = found(**waits, policy=strict, total_s=POLICY.deadline_s)
    assert (overdue.action, overdue.code) == (Action.ROLL_BACK, Code.OVERDUE)
    assert found(**waits, is_stable_renewed=True).action is Action.ADVANCE
    assert found(**waits, is_promoting=True, state=S.BAKING, weight_bp=9500).code is Code.PROMOTING


def test_all_looks_of_a_rollout_together_have_the_chance_of_one() -> None:
    looks = [CHANCE / (n * (n + 1)) for n in range(1, 10_000)]
    assert sum(looks) < CHANCE
    few = {**ONE_IS_BAD, "a:1": ReplicaTally(0, 500), "b:1": ReplicaTally(8, 500)}
    assert found(stable_replicas=few, stable_looks=0).code is Code.REPLICA_DIFFERS
    assert found(stable_replicas=few, stable_looks=30).action is Action.ADVANCE


def test_of_replicas_that_are_alike_none_is_named_more_often_than_is_promised() -> None:
    rng, named, runs = random.Random(36), 0, 1000
    for _ in range(runs):
        for look in range(3):
            bad = [0, 0, 0]
            for _ in range(rng.choice([15, 40])):
                bad[rng.randrange(3)] += 1
            tallies = {str(at): ReplicaTally(n, 300) for at, n in enumerate(bad)}
            named += found(stable_replicas=tallies, stable_looks=look).code is Code.REPLICA_DIFFERS
    assert named <= 3 * CHANCE * runs


# --- evidence begins afresh -------------------------------------------------------------------------------------------


def beside(bad_candidate: int, bad_stable: int, seconds: int = 60) -> Evidence:
    guard, kept = POLICY.guards[0], Evidence()
    for _ in range(seconds):
        part = Part(20, 20, {"errors": (bad_candidate, bad_stable)})
        kept = kept.after([part], worse=guard.roll_back_over, fine=guard.promote_within, name="errors")
    return kept


def settled(evidence: Evidence) -> EngineState:
    watches = {name: GuardTracker(evidence=evidence) for name in ("errors", "slow")}
    return ticked(keeping(StableReplica("b:1", 10.0, 3, True), watches=watches), 20.0)


def ticked(state: EngineState, at: float, *, is_replacing: bool = False) -> EngineState:
    return state.observed(seen(at, is_stable_replacing=is_replacing), Desired(S.SHIFTING), has_stable=True)


def test_evidence_begins_afresh_once_another_has_answered_for_some_seconds() -> None:
    state = settled(beside(1, 1))
    assert ticked(state, 21.0, is_replacing=True).of(StableReplica).gone_at is None
    assert ticked(state, 20.0 + SETTLES_S) == state
    done = ticked(state, 20.1 + SETTLES_S)
    assert done.of(StableReplica) == StableReplica("b:1", 10.0, 3, True, 20.0, True)
    assert done.watches["errors"].evidence == Evidence() and done.watches["slow"] == state.watches["slow"]
    assert ticked(done, 99.0) == done
    assert EngineState.from_json(done.to_json()).of(StableReplica) == done.of(StableReplica)


def test_one_that_an_older_version_kept_is_read() -> None:
    stored = {"stable_odd": ["b:1", 10.0, 3, True, 20.0, True], "stable_looks": 4}
    assert EngineState.from_json(stored).of(StableReplica) == StableReplica(
        "b:1", 10.0, 3, is_aside=True, gone_at=20.0, is_renewed=True, looks=4
    )


def story(
    candidate_fails: float,
    *,
    is_told: bool,
    seconds: int = 900,
    odd_fails: float = 0.06,
    incident: float = 0.0,
    max_frac: float = 0.03,
) -> list[Decision]:
    """One of stable's three replicas fails `odd_fails`, the others none, until 30 s after it was told; the weight is 50 % all the time.
    Until then everybody fails `incident`."""
    rng = random.Random(7)
    policy, state, total, decisions = one_step(max_frac), EngineState(), Arms(), list[Decision]()
    tallies = {name: ReplicaTally(0, 0) for name in "abc"}
    for tick in range(seconds):
        odd = state.of(StableReplica)
        is_bad = not odd.replica or tick < odd.at + 30
        shared = incident if is_bad else 0.0
        fails = {name: max(shared, odd_fails * (is_bad and name == "b")) for name in "abc"}
        of_stable = {name: sum(rng.random() < fails[name] for _ in range(10)) for name in "abc"}
        tallies = {name: ReplicaTally(tallies[name].bad + n, 10 * (tick + 1)) for name, n in of_stable.items()}
        bad = sum(rng.random() < max(shared, candidate_fails) for _ in range(30))
        total += Arms(Counts(30, 30, {"errors": bad}), Counts(30, 30, {"errors": sum(of_stable.values())}))
        looked = seen(
            tick + 1.0, is_newly_acknowledged=not tick, step_started_at=1.0, candidate_servers=1, stable_servers=3,
            is_stable_replacing=is_bad and bool(odd.replica),
        )  # fmt: skip
        given = TickInput(
            tick, policy, Identity(1), Desired(S.SHIFTING, step_index=0, weight_bp=5000), looked, state,
            readings={"one": Reading("one", tick + 1.0, total.candidate, total.stable)},
        )  # fmt: skip
        last = evaluate(given, gone_over_s=5.0)
        if is_told and doubted(last.snapshot, last.decision) is not None:
            told = replace(looked.given(StableTallies), tallies=tallies)
            last = evaluate(replace(given, observed=looked.telling(told)), gone_over_s=5.0)
        state, decisions = last.engine_state, [*decisions, last.decision]
        if last.is_effect:
            break
    return decisions


def one_step(max_frac: float = 0.03) -> Policy:
    step = {"weight_pct": 50, "min_s": 60, "min_samples": 300, "deadline_s": 9000}
    asked = {"steps": [step], "guards": [{"indicator": "errors"}]}
    return parse_policy(asked, {"errors_max_frac": max_frac}).facing(has_stable=True)


def test_a_candidate_as_bad_as_stable_with_its_bad_replica_passes_where_nobody_tells_and_is_taken_back_where_somebody_does() -> (
    None
):
    untold = story(0.02, is_told=False)
    assert untold[-1].action is Action.BAKE
    told = story(0.02, is_told=True)
    assert Code.REPLICA_DIFFERS in {one.code for one in told}
    assert (told[-1].action, told[-1].code) == (Action.ROLL_BACK, Code.WORSE_THAN_STABLE)


def test_a_good_candidate_goes_on_once_the_replica_is_replaced() -> None:
    told = story(0.0, is_told=True)
    assert Code.REPLICA_DIFFERS in {one.code for one in told} and told[-1].action is Action.BAKE


def since_renewed(told: list[Decision]) -> list[Decision]:
    """What was decided after the last hold for stable's replica."""
    last = max(at for at, one in enumerate(told) if one.code is Code.REPLICA_DIFFERS)
    return told[last + 1 :]


def test_what_both_arms_failed_in_an_incident_is_not_held_against_the_candidate_once_stable_is_renewed() -> None:
    shared = {"odd_fails": 0.3, "incident": 0.1, "max_frac": 0.01}
    after = since_renewed(story(0.0, is_told=True, **shared))
    assert after[-1].action is Action.BAKE and Code.BOTH_ARMS_BAD not in {one.code for one in after}
    assert after[-1].facts["guards"]["errors"]["bad_candidate"] == 0
    after = since_renewed(story(0.05, is_told=True, **shared))
    assert len(after) > 1 and after[-1].action is Action.ROLL_BACK
