"""What is carried from tick to tick, one field at a time: sums, instants, and what begins anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.blast_radius import ExcessFailures
from rollouts.core.counter_deltas import Arms, Counts, Reading, difference, has_lost
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.evidence import Tolerance
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.policy_schema import parse_policy
from rollouts.core.rules.all_failing import AllFailing, fails
from rollouts.core.rules.blind import Blindness
from rollouts.core.rules.budget import SpentBudget
from rollouts.core.rules.lost_counts import LostCounts
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.rules.warm_up import WarmUp
from tests.core.test_engine_state import seeing
from tests.support.worlds.snapshots import keeping

POLICY = parse_policy({"guards": [{"indicator": "errors"}]})
NOTHING = Counts()


def counts(attempts: int, errors: int = 0, **more: int) -> Counts:
    return Counts(attempts, attempts, {"errors": errors, **more})


def reading(at: float, candidate: Counts, stable: Counts = NOTHING, **more: Any) -> Reading:
    return Reading("one", at, candidate, stable, **more)


def taken(state: EngineState, tick: int, **readings: Reading) -> EngineState:
    return update_state(state, tick=tick, readings=readings, policy=POLICY, has_stable=True)


BEGUN = EngineState(readings={"a": reading(10.0, NOTHING), "b": reading(10.0, NOTHING)})

# --- counters ---------------------------------------------------------------------------------------------------------


def test_counts_are_added_by_name() -> None:
    one, other = Counts(1, 2, {"errors": 3}), Counts(10, 20, {"shed": 40})
    assert one + other == other + one == Counts(11, 22, {"errors": 3, "shed": 40})


@pytest.mark.parametrize(
    "lower", [Counts(9, 10, {"errors": 5}), Counts(10, 9, {"errors": 5}), Counts(10, 10, {"errors": 4})]
)
def test_any_counter_that_fell_makes_the_difference_unknown(lower: Counts) -> None:
    before = Counts(10, 10, {"errors": 5})
    assert lower.fell(before) and lower.since(before) == NOTHING
    assert not before.fell(before)
    assert has_lost(reading(0.0, before), reading(1.0, lower))
    assert has_lost(reading(0.0, NOTHING, before), reading(1.0, NOTHING, lower))
    assert not has_lost(reading(0.0, before, lower), reading(1.0, before, before))


def test_users_requests_and_errors_are_differences_and_never_fall() -> None:
    before = reading(0.0, NOTHING, user_requests=100, user_errors=5)
    later = difference(before, reading(1.0, NOTHING, user_requests=130, user_errors=8))
    assert (later.user_requests, later.user_errors) == (30, 3)
    for now in (reading(1.0, NOTHING), reading(1.0, NOTHING, user_requests=100, user_errors=5)):
        same = difference(before, now)
        assert (same.user_requests, same.user_errors) == (0, 0)
    first = difference(None, before)
    assert (first.user_requests, first.user_errors) == (0, 0)


def test_answers_are_waited_for_from_half_a_second_on_and_for_three_minutes_at_most() -> None:
    def settles(answer_s: float, after_s: float) -> bool:
        return reading(100.0 + after_s, NOTHING, since=100.0, answer_s=answer_s).is_settled

    assert settles(0.49, 0.0) and not settles(0.5, 0.74) and settles(0.5, 0.75)
    assert not settles(1e9, 179.9) and settles(1e9, 180.0)  # a stream may stay open for ever
    known = reading(100.0, NOTHING, since=90.0)
    assert known.after(None) is known


def test_all_that_was_ever_counted_survives_json_for_both_arms() -> None:
    told = reading(1.0, NOTHING, whole=(counts(3), counts(7)))
    assert Reading.from_json(told.to_json()).whole == told.whole


# --- a candidate that only fails --------------------------------------------------------------------------------------


def test_only_attempts_without_a_good_one_fail() -> None:
    assert fails(counts(1, 1)) and not fails(counts(2, 1)) and not fails(NOTHING)
    assert not fails(Counts(1, 1, {}))
    row = AllFailing().after(5.0, Arms(counts(3, 3), Counts(4, 4, {})))
    assert (row.good, row.bad, row.since, row.until) == (4, 0, 5.0, 5.0)
    assert row.after(6.0, Arms(NOTHING, counts(6, 2))) == replace(row, good=8, bad=2)
    assert AllFailing().after(5.0, Arms(NOTHING, counts(6, 2))) == AllFailing()


# --- what it has cost -------------------------------------------------------------------------------------------------


def test_the_excess_and_its_variance_by_hand() -> None:
    """10 of 100 beside 40 of 400, with twice stable's share and a hundredth tolerated."""
    harm, tolerated = ExcessFailures(10, 100, 40, 400), Tolerance(2.0, 0.01)
    assert harm.excess(tolerated) == pytest.approx(10 - 21)
    assert harm.variance(tolerated) == pytest.approx(0.1 * 0.9 * 100 * (1 + 4 * 100 / 400))
    for one_arm in (ExcessFailures(10, 100, 0, 0), ExcessFailures(0, 0, 40, 400)):
        assert (one_arm.excess(tolerated), one_arm.variance(tolerated)) == (0.0, 0.0)
    assert ExcessFailures(1.23456789, 2, 0, 3).to_json() == [1.234568, 2, 0, 3]
    assert ExcessFailures(9, 20, 0, 3, 1.23456789).to_json() == [9, 20, 0, 3, 1.234568]
    assert ExcessFailures.from_json([9, 20, 0, 3]).worst == 0  # as an older version stored it


def test_the_worst_tick_is_one_event_and_no_lasting_cost() -> None:
    none = Tolerance()
    burst = ExcessFailures().after(ExcessFailures(300, 400, 1, 400), none)
    assert (burst.excess(none), burst.lasting(none)) == (299.0, 0.0)
    second = burst.after(ExcessFailures(200, 400, 0, 400), none)
    assert (second.worst, second.excess(none), second.lasting(none)) == (300, 499.0, 199.0)
    well = second.after(ExcessFailures(0, 400, 600, 400), none)
    assert well == ExcessFailures()  # a burst of stable's makes the candidate no worse: all begins anew


def test_the_count_begins_anew_where_the_candidate_is_just_within_its_tolerance() -> None:
    beside, plain = ExcessFailures(0, 0, 20, 200), Tolerance()
    assert beside.after(ExcessFailures(10, 100, 0, 0), plain) == ExcessFailures()
    assert beside.after(ExcessFailures(11, 100, 0, 0), plain) == ExcessFailures(11, 100, 20, 200, worst=11)
    assert ExcessFailures().after(ExcessFailures(0, 100, 0, 0), plain).candidate == 100  # nobody to compare with yet


def test_the_cost_of_a_rollout_is_that_of_all_gateways_and_stages() -> None:
    one = ExcessFailures(30, 100, 40, 400, worst=2)  # pooled 0.14
    state = EngineState(
        watches={"errors": GuardTracker(harm={"a": one, "b": one}), "gone": GuardTracker(harm={"a": one})}
    )
    tolerated = POLICY.guards[0].roll_back_over
    excess = 30 - 100 * (1.2 * 0.1 + 0.001) - 2
    variance = 0.14 * 0.86 * 100 * (1 + 1.2**2 / 4)
    assert (tolerated.ratio, tolerated.plus_frac) == (1.2, 0.001)
    assert state.of(SpentBudget).so_far(state.watches, POLICY) == {"errors": pytest.approx((2 * excess, 2 * variance))}
    later = SpentBudget({"errors": (5.0, 7.0)})
    assert later.so_far(state.watches, POLICY)["errors"] == pytest.approx((5 + 2 * excess, 7 + 2 * variance))
    assert SpentBudget({"errors": (1.23456, 2.0)}).to_json() == {"errors": [1.2346, 2.0]}


# --- ticks ------------------------------------------------------------------------------------------------------------


def test_a_state_begins_with_nothing_counted_before_tick_0() -> None:
    new = EngineState()
    assert (new.drawn, new.user_requests, new.user_errors, new.of(WarmUp).server_base) == (0, 0, 0, 0)
    assert taken(BEGUN, -1, a=reading(11.0, counts(5))) is BEGUN
    assert taken(BEGUN, 0, a=reading(11.0, counts(5))).step.candidate.attempts == 5


def test_users_are_counted_over_all_gateways_and_ticks() -> None:
    first = taken(
        BEGUN,
        1,
        a=reading(11.0, NOTHING, user_requests=10, user_errors=1),
        b=reading(11.0, NOTHING, user_requests=5, user_errors=2),
    )
    assert (first.user_requests, first.user_errors) == (15, 3)
    later = taken(first, 2, a=reading(12.0, NOTHING, user_requests=14, user_errors=2))
    assert (later.user_requests, later.user_errors) == (19, 4)


def told(state: EngineState) -> tuple[bool, float | None, float | None]:
    return state.of(CandidateServers).has_failed, state.of(WarmUp).served_since, state.candidate_seen_at


def test_the_last_attempts_tell_whether_any_failed_and_when_the_server_served() -> None:
    bad = taken(BEGUN, 1, a=reading(11.0, counts(5, 1)))
    assert told(bad) == (True, 11.0, 11.0)
    quiet = taken(bad, 2, a=reading(12.0, counts(5, 1)))
    assert told(quiet) == (True, 11.0, 11.0)
    good = taken(quiet, 3, a=reading(13.0, counts(9, 1)))
    assert told(good) == (False, 11.0, 13.0)
    untold = taken(BEGUN, 1, a=reading(11.0, Counts(5, 5, {"shed": 0})))
    assert told(untold) == (False, 11.0, 11.0)
    nobody = taken(BEGUN, 1, a=reading(11.0, NOTHING, counts(5)))
    assert told(nobody) == (False, None, None)


def test_counts_that_were_lost_are_dated_and_a_new_gateway_loses_none() -> None:
    known = taken(BEGUN, 1, a=reading(11.0, counts(50)))
    assert known.of(LostCounts).at is None
    lost = taken(known, 2, a=reading(12.0, counts(40)))
    assert lost.of(LostCounts).at == 12.0 and taken(lost, 3, a=reading(13.0, counts(41))).of(LostCounts).at == 12.0
    assert taken(known, 2, c=reading(12.0, counts(40))).of(LostCounts).at is None


# --- stages, servers and blindness ------------------------------------------------------------------------------------


def test_the_same_stage_changes_nothing() -> None:
    state = replace(BEGUN, stage="shifting:1", step=Arms(counts(5), NOTHING))
    assert state.entering("shifting:1", 20.0, POLICY) is state
    assert state.entering("shifting:2", 20.0, POLICY).step == Arms()


def test_blindness_goes_on_over_half_a_minute_without_a_look() -> None:
    blind = seeing(EngineState(), 100.0, problem="stale")
    assert seeing(blind, 130.0, problem="stale").of(Blindness).since == 100.0
    assert seeing(blind, 130.1, problem="stale").of(Blindness).since == 130.1


def test_a_new_server_has_no_first_attempts_yet_and_an_old_one_keeps_its_own() -> None:
    trackers = {"errors": GuardTracker(first=(3, 40))}
    state = keeping(WarmUp(served_since=12.0), watches=trackers, total=Arms(counts(70), NOTHING))
    assert seeing(state, 50.0) == state
    new = seeing(state, 50.0, server_since=50.0)
    assert new.of(WarmUp) == WarmUp(50.0, 70, None) and new.watches["errors"].first == (0, 0)
    served = keeping(WarmUp(50.0, 70, 51.0), watches={"errors": GuardTracker(first=(1, 9))}, total=new.total)
    assert seeing(served, 52.0, server_since=50.0) == served
    assert seeing(served, 61.0, server_since=60.0).watches["errors"].first == (0, 0)


def test_a_candidate_without_a_server_is_dated_from_the_first_look() -> None:
    gone = seeing(EngineState(), 10.0, candidate_servers=0)
    assert gone.of(CandidateServers).gone_since == 10.0
    assert seeing(gone, 11.0, candidate_servers=0).of(CandidateServers).gone_since == 10.0
    assert seeing(gone, 12.0, candidate_servers=1).of(CandidateServers).gone_since is None
