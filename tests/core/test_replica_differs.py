"""A rollout is held for one bad replica only where nothing else speaks against the candidate, once, and not for ever."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.commands import ForgetReplica
from rollouts.core.counter_deltas import TIMED, Arms, Counts, Reading
from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.engine_state import EngineState
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.evidence import Window
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.headroom import Headroom
from rollouts.core.judged import Judged, judge_guard
from rollouts.core.lifecycle import RolloutState
from rollouts.core.odd_replica import CHANCE, ReplicaTally, odd_one_out
from rollouts.core.policy import OnUndecided
from rollouts.core.policy_schema import parse_policy
from rollouts.core.rules.mostly_failing import MostlyFailing
from rollouts.core.rules.replica_differs import SETTLES_S, CandidateTallies, EjectReplica, ReplicaDiffers, suspected
from rollouts.core.snapshot import Desired, Identity, Observed
from rollouts.core.step_evidence import Evidence, Part
from tests.core.test_decide import ALONE, BREACHES, OBJECTIVES, POLICY, judged, snapshot
from tests.support.worlds.snapshots import keeping, seen

S = RolloutState
ONE_IS_BAD = {"a:1": ReplicaTally(0, 300), "b:1": ReplicaTally(90, 300)}
SLOW = POLICY.guards[1].name
WORSE = (judged(0, bad_candidate=50, log_e_worse=30.0, bad_stable=0), judged(1))


def held(**over: Any) -> Any:
    return decide(snapshot(**{"judged": WORSE, "replicas": ONE_IS_BAD, "candidate_servers": 2, **over}))


def test_it_holds_says_why_and_names_the_replica() -> None:
    found = held()
    assert (found.action, found.code) == (Action.HOLD, Code.REPLICA_DIFFERS)
    assert found.reason == (
        "Holding at 25 %: errors of r2 are at 10 %, but they are of one replica of 2: b:1, 90 of 300 attempts; "
        "the others failed 0 of 300. It gets no more traffic, and another is to take its place."
    )
    assert found.facts["set_aside"] == "b:1" and found.facts["guard"] == "errors"
    assert held(state=S.BAKING, weight_bp=9500).code is Code.REPLICA_DIFFERS


def test_it_holds_as_well_where_most_attempts_fail() -> None:
    row = {
        "mostly": MostlyFailing(3, 0.0, 1.0, 70, 130, 0, 300, 49.0, 12.0),
        "judged": (judged(0, bad_candidate=80), judged(1)),
    }
    assert held(**row, replicas={}).code is Code.MOSTLY_FAILING
    found = held(**row, replicas={"a:1": ReplicaTally(0, 100), "b:1": ReplicaTally(80, 100)})
    assert (found.action, found.code, found.facts["set_aside"]) == (Action.HOLD, Code.REPLICA_DIFFERS, "b:1")
    assert (
        held(**row, replicas={"a:1": ReplicaTally(40, 100), "b:1": ReplicaTally(40, 100)}).code is Code.MOSTLY_FAILING
    )


def test_a_stable_that_has_seen_few_attempts_in_this_stage_names_the_replica_by_its_usual_share() -> None:
    """It failed none of 60 so far. One failure of 287 on the others would then be more than is tolerated."""
    early = judged(0, bad_candidate=50, log_e_worse=30.0, bad_stable=0, stable=60)
    tallies = {"a:1": ReplicaTally(1, 287), "b:1": ReplicaTally(90, 290)}
    found = held(judged=(early, judged(1)), replicas=tallies, usual_frac=0.005)
    assert (found.code, found.facts["set_aside"]) == (Code.REPLICA_DIFFERS, "b:1")


def test_the_scatter_of_stable_and_not_that_of_the_fault_decides_whether_a_replica_is_odd() -> None:
    scattered = replace(WORSE[0], phi=40.0)
    assert held(judged=(scattered, judged(1))).code is Code.REPLICA_DIFFERS
    assert held(judged=(replace(scattered, phi_stable=40.0), judged(1))).action is Action.ROLL_BACK


def test_it_says_how_often_nobody_was_found_there() -> None:
    found = held(replicas={**ONE_IS_BAD, "b:1": ReplicaTally(90, 300, unreached=80)})
    assert found.code is Code.REPLICA_DIFFERS and found.facts["odd_replica"]["unreached"] == 80
    assert "b:1, 90 of 300 attempts, 80 of which found nobody there; the others failed 0 of 300." in found.reason


def test_what_is_given_up_unanswered_is_slow_too_and_does_not_take_it_back() -> None:
    unanswered = {"judged": (WORSE[0], judged(1, bad_candidate=50, log_e_worse=30.0))}
    found = held(**unanswered)
    assert found.code is Code.REPLICA_DIFFERS and found.facts["besides"] == [SLOW]
    slower = judged(1, bad_candidate=53, bad_stable=3, log_e_worse=30.0)  # one of a thousand of stable's
    assert held(judged=(WORSE[0], replace(slower, bad_candidate=51))).code is Code.REPLICA_DIFFERS
    assert held(judged=(WORSE[0], slower)).action is Action.ROLL_BACK
    assert held(judged=(WORSE[0], replace(slower, beyond_chance=50.0))).facts["besides"] == [
        SLOW
    ]  # chance adds the rest
    assert held(judged=(WORSE[0], replace(slower, beyond_chance=50.1))).action is Action.ROLL_BACK
    other_point = replace(unanswered["judged"][1], farthest=("slow_100", Window(90, 300, 0, 1000)))
    assert held(judged=(WORSE[0], other_point)).action is Action.ROLL_BACK
    assert held(judged=(WORSE[0], replace(slower, log_e_worse=0.0))).facts["besides"] == []


@pytest.mark.parametrize(
    ("slow", "besides"),
    [
        ({}, []),  # nothing speaks against the candidate
        ({"bad_candidate": 50}, []),
        ({"bad_candidate": 50, "log_e_worse": 0.0}, []),
        ({"bad_candidate": 50, "log_e_worse": 0.1}, [SLOW]),  # its silence may bring that over the bar while it is in flight
        ({"bad_candidate": 50, "log_e_over": 0.1}, [SLOW]),
        ({"bad_candidate": 50, "bad_stable": 150, "log_e_over": 30.0}, []),  # as slow as stable: not for its failures
        ({"bad_candidate": 51, "bad_stable": 0, "log_e_worse": 0.1}, []),  # some of it is not that replica's
    ],
)  # fmt: skip
def test_evidence_of_slowness_is_kept_but_for_what_speaks_against_the_candidate_and_is_all_its_own(
    slow: dict[str, Any], besides: list[str]
) -> None:
    found = held(judged=(WORSE[0], judged(1, **slow)))
    assert found.code is Code.REPLICA_DIFFERS and found.facts["besides"] == besides


def slowness(own: tuple[int, int], others: tuple[int, int], seconds: int = 20) -> Judged:
    """Each second so many of 100 attempts of the candidate and of stable were slow: at the guard's own threshold, and elsewhere."""
    guard, kept = POLICY.guards[1], Evidence()
    bad = {point: own if point == guard.name else others for point in guard.points}
    for _ in range(seconds):
        kept = kept.after([Part(100, 100, bad)], worse=guard.roll_back_over, fine=guard.promote_within, name=guard.name)
    return judge_guard(guard, GuardTracker(evidence=kept), has_stable=True, bar_fine=POLICY.bar_fine)


def test_a_release_that_is_slow_at_another_point_than_speaks_loudest_is_taken_back() -> None:
    """One replica gives up 100 of 2,000, slow at every point; 320 more are slow at the lower ones, where that says less."""
    failing, silent = judged(0, bad_candidate=100, log_e_worse=30.0, bad_stable=0), {"b:1": ReplicaTally(100, 1000)}
    found = held(judged=(failing, slowness((5, 0), (22, 6))), replicas={"a:1": ReplicaTally(0, 1000), **silent})
    assert (found.action, found.code) == (Action.ROLL_BACK, Code.WORSE_THAN_STABLE)
    alone = slowness((0, 0), (17, 6))  # the same release without that replica
    assert held(judged=(judged(0), alone), replicas={}).code is Code.WORSE_THAN_STABLE
    its_own = held(judged=(failing, slowness((5, 0), (11, 6))), replicas={"a:1": ReplicaTally(0, 1000), **silent})
    assert its_own.code is Code.REPLICA_DIFFERS and its_own.facts["besides"] == [SLOW]


ALIKE = {"a:1": ReplicaTally(45, 300), "b:1": ReplicaTally(45, 300)}
THINNED = {"a:1": ReplicaTally(6, 30_000), "b:1": ReplicaTally(40, 30_000)}
#: All have failed 15 in this stage; the first had failed 300 in an incident that was excused.
OF_EARLIER = {"a:1": ReplicaTally(315, 30_000), "b:1": ReplicaTally(15, 30_000), "c:1": ReplicaTally(15, 30_000)}


@pytest.mark.parametrize(
    "over",
    [
        {"replicas": ALIKE},
        {"replicas": THINNED},  # well for long, but the others have begun to fail too
        {"replicas": OF_EARLIER, "judged": (judged(0, bad_candidate=45, log_e_worse=30.0, bad_stable=0), judged(1))},
        {"replicas": {}},  # nobody told
        {"replicas": {"b:1": ReplicaTally(90, 300)}},  # there is no other
        {"aside_s": 100.0, "aside": "c:1"},  # one was set aside already
        {"is_promoting": True},
        {"state": S.PAUSED},
        {"all_failing": 10, "all_failing_s": 1.0},
        {"harm": {"errors": (1000.0, 1.0)}},  # the budget is spent
        {"judged": (WORSE[0], judged(1, bad_candidate=90, log_e_worse=30.0))},  # it is slow, too
        {
            "headroom": Headroom(2, candidate=2, stable=2, proven_candidate=4.0)
        },  # one server is not proven for what two got
    ],
)
def test_else_it_is_taken_back_at_once(over: dict[str, Any]) -> None:
    found = held(**over)
    assert (found.action, found.code) == (Action.ROLL_BACK, Code.WORSE_THAN_STABLE), found.reason


@pytest.mark.parametrize(("breach", "code"), BREACHES)
def test_no_other_breach_waits_for_a_replica(breach: dict[str, Any], code: Code) -> None:
    if code is Code.WORSE_THAN_STABLE:
        return
    assert held(**breach if "judged" in breach else {"judged": (judged(0), judged(1)), **breach}).code is code


def test_where_nothing_is_done_for_it_the_replica_is_named() -> None:
    over = judged(0, ALONE, bad_candidate=50, log_e_over=30.0), judged(1, ALONE)
    found = held(policy=ALONE, has_stable=False, judged=over, weight_bp=10_000, step_index=0)
    assert found.action is Action.PAUSE and "Look at that server first." in found.reason
    named = held(state=S.PAUSED)
    assert named.action is Action.ROLL_BACK and named.facts["odd_replica"]["replica"] == "b:1"


def test_it_waits_for_the_one_in_its_place_and_not_for_ever() -> None:
    waits = {"judged": (judged(0), judged(1)), "aside": "b:1", "is_replacing": True, "replicas": {}}
    found = held(**waits, aside_s=20.0)
    assert (found.action, found.code) == (Action.HOLD, Code.REPLICA_DIFFERS) and "in the place of b:1" in found.reason
    late = held(**waits, aside_s=1800.0)
    assert (late.action, late.code) == (Action.ROLL_BACK, Code.REPLICA_DIFFERS) and "none answers" in late.reason
    assert held(**{**waits, "is_replacing": False}, aside_s=20.0).action is Action.ADVANCE
    assert held(**waits, aside_s=1800.0, is_replaced=True).action is Action.ADVANCE  # one of them is being brought back
    assert held(**waits, aside_s=1800.0, state=S.PAUSED).code is Code.PAUSED
    assert held(**waits, aside_s=9.0, is_promoting=True, state=S.BAKING, weight_bp=9500).code is Code.PROMOTING


STRICT = replace(POLICY, on_undecided=OnUndecided.ROLL_BACK)
#: Past the deadline of the stage, and of the rollout.
DEADLINES = [({"now": 900.0 + 601.0}, Code.OVERDUE), ({"total_s": POLICY.deadline_s}, Code.OVERDUE)]


@pytest.mark.parametrize(("past", "code"), DEADLINES)
def test_no_deadline_stands_still_while_a_replica_is_waited_for(past: dict[str, Any], code: Code) -> None:
    waits = {"judged": (judged(0), judged(1)), "aside": "b:1", "is_replacing": True, "replicas": {}, "aside_s": 20.0}
    assert held(**waits, policy=STRICT).code is Code.REPLICA_DIFFERS
    ended = held(**waits, policy=STRICT, **past)
    assert (ended.action, ended.code) == (Action.ROLL_BACK, code)
    told = held(**waits, **past)
    assert told.action is Action.HOLD and (told.code is Code.OVERDUE or told.facts["is_late"])


@pytest.mark.parametrize("past", [past for past, _ in DEADLINES])
def test_where_a_deadline_would_end_the_hold_at_once_the_breach_is_told(past: dict[str, Any]) -> None:
    found = held(policy=STRICT, **past)
    assert (found.action, found.code) == (Action.ROLL_BACK, Code.WORSE_THAN_STABLE)
    assert found.facts["breach"] == "worse_than_stable" and found.facts["odd_replica"]["replica"] == "b:1"
    assert held(**past).facts["set_aside"] == "b:1"


def ejected(state: EngineState, *besides: str) -> EngineState:
    commands = EjectReplica("b:1", besides), ForgetReplica(("errors", *besides), has_scatter=True)
    return state.obeying(commands, Observed(100.0, candidate_servers=2))


def ticked(state: EngineState, at: float, **values: Any) -> EngineState:
    return state.observed(seen(at, **values), Desired(S.SHIFTING), has_stable=True)


def test_its_failures_are_no_evidence_until_it_is_out_of_the_gateways_and_then_others_are() -> None:
    watch = GuardTracker(evidence=replace(Evidence(), candidate=7))
    state = ejected(EngineState(watches={"errors": watch}))
    assert state.of(ReplicaDiffers) == ReplicaDiffers("b:1", 100.0, 2)
    assert state.watches["errors"].evidence == Evidence()
    more = replace(state, watches={"errors": watch})
    assert ticked(more, 100.0 + SETTLES_S).watches["errors"].evidence == Evidence()
    assert ticked(more, 100.1 + SETTLES_S, is_replacing=True) == more
    assert EngineState.from_json(state.to_json()).of(ReplicaDiffers) == state.of(ReplicaDiffers)


def test_what_was_slow_because_it_failed_is_forgotten_with_it_and_nothing_else() -> None:
    watches = {name: GuardTracker(evidence=replace(Evidence(), candidate=7)) for name in ("errors", "slow", "wrong")}
    state = ejected(EngineState(watches=watches), "slow")
    kept = ticked(EngineState.from_json(replace(state, watches=watches).to_json()), 100.0 + SETTLES_S)
    for found in (state, kept):
        assert [found.watches[name].evidence.candidate for name in watches] == [0, 0, 7]
    assert kept.of(ReplicaDiffers) == ReplicaDiffers("b:1", 100.0, 2, besides=("slow",))
    for more in ([], ["slow"]):  # as older versions kept it
        before = EngineState.from_json({"aside": ["b:1", 100.0, 2, False, *more]})
        assert before.of(ReplicaDiffers) == ReplicaDiffers("b:1", 100.0, 2, besides=tuple(more))


def test_one_that_no_longer_answers_is_held_for_and_its_silence_takes_nothing_back_as_slowness() -> None:
    """Second by second: from the thirtieth on a quarter of the candidate's attempts is given up unanswered, all on one replica, until two
    seconds after that was set aside."""
    step = {"weight_pct": 50, "min_s": 5000, "min_samples": 1, "deadline_s": 9000}
    policy = parse_policy({"steps": [step]}, OBJECTIVES).facing(has_stable=True)
    state, total, done, silent, held_at = EngineState(), Arms(), [], 0, math.inf
    for tick in range(120):
        bad = 5 if 30 <= tick <= held_at + 2 else 0
        silent += bad
        slow = {point: bad for guard in policy.guards for point in guard.points}
        total += Arms(Counts(20, 20, {TIMED: 20, **slow}), Counts(20, 20, {TIMED: 20, **dict.fromkeys(slow, 0)}))
        looked = seen(
            tick + 1.0, is_newly_acknowledged=not tick, step_started_at=1.0, candidate_servers=2, stable_servers=2,
            is_replacing=tick > held_at,
        )  # fmt: skip
        readings = {"one": Reading("one", tick + 1.0, total.candidate, total.stable)}
        given = TickInput(
            tick,
            policy,
            Identity(1),
            Desired(S.SHIFTING, step_index=0, weight_bp=5000),
            looked,
            state,
            readings=readings,
        )
        last = evaluate(given, gone_over_s=5.0)
        if suspected(last.snapshot, last.decision) is not None:
            tallies = {"a:1": ReplicaTally(0, 10 * tick), "b:1": ReplicaTally(silent, 10 * tick)}
            last = evaluate(
                replace(given, observed=looked.telling(CandidateTallies(tallies, tick > held_at))), gone_over_s=5.0
            )
        if "set_aside" in last.decision.facts:
            held_at = tick
        state, done = last.engine_state, [*done, last.decision]
    assert held_at < 60 and [one.reason for one in done if one.action is Action.ROLL_BACK] == []
    assert (
        done[int(held_at)].facts["besides"] == [SLOW] and done[-1].code is Code.REPLICA_DIFFERS
    )  # none took its place yet


def test_another_answered_in_its_place_once_as_many_do_again() -> None:
    state = keeping(ReplicaDiffers("b:1", 100.0, 2))
    assert ticked(state, 101.0) == state  # gateways have not been told yet
    assert ticked(state, 160.0, is_replacing=True) == state
    done = ticked(state, 161.0)
    assert done.of(ReplicaDiffers).is_replaced and EngineState.from_json(done.to_json()) == done
    assert ticked(done, 999.0, is_replacing=True) == done


def test_a_replica_of_a_bad_release_is_blamed_no_more_often_than_is_promised_however_long_it_is_looked_at() -> None:
    """All are alike, and when it is looked depends on the counts of all of them together."""
    rng, blamed, runs = random.Random(32), 0, 3000
    for _ in range(runs):
        at = rng.choice([10, 20, 30, 50])  # the moment depends on the pooled counts alone
        bad = [0, 0, 0]
        for _ in range(at):
            bad[rng.choices(range(3), weights=(3, 2, 1))[0]] += 1
        tallies = {str(i): ReplicaTally(n, 100 * w) for i, (n, w) in enumerate(zip(bad, (3, 2, 1), strict=True))}
        found = odd_one_out(tallies, tolerated=0.5)
        blamed += found is not None
    assert blamed <= 3 * CHANCE * runs
