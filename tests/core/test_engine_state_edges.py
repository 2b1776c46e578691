"""What is carried from tick to tick, one field at a time: sums, instants, and what begins anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.all_failing import Failures, fails
from rollouts.core.blast_radius import ExcessFailures
from rollouts.core.counter_deltas import Arms, Counts, Reading, difference, has_lost
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.evidence import Tolerance
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.policy_schema import parse_policy

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
    row = Failures().after(5.0, Arms(counts(3, 3), Counts(4, 4, {})))
    assert (row.good, row.bad, row.since, row.until) == (4, 0, 5.0, 5.0)
    assert row.after(6.0, Arms(NOTHING, counts(6, 2))) == replace(row, good=8, bad=2)
    assert Failures().after(5.0, Arms(NOTHING, counts(6, 2))) == Failures()


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
    assert state.harm_so_far(POLICY) == {"errors": pytest.approx((2 * excess, 2 * variance))}
    later = replace(state, harm={"errors": (5.0, 7.0)})
    assert later.harm_so_far(POLICY)["errors"] == pytest.approx((5 + 2 * excess, 7 + 2 * variance))
    assert EngineState(harm={"errors": (1.23456, 2.0)}).to_json()["harm"] == {"errors": [1.2346, 2.0]}


# --- ticks ------------------------------------------------------------------------------------------------------------


def test_a_state_begins_with_nothing_counted_before_tick_0() -> None:
    new = EngineState()
    assert (new.drawn, new.user_requests, new.user_errors, new.server_base) == (0, 0, 0, 0)
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


def test_the_last_attempts_tell_whether_any_failed_and_when_the_server_served() -> None:
    bad = taken(BEGUN, 1, a=reading(11.0, counts(5, 1)))
    assert bad.has_failed and bad.served_since == bad.candidate_seen_at == 11.0
    quiet = taken(bad, 2, a=reading(12.0, counts(5, 1)))
    assert quiet.has_failed and (quiet.served_since, quiet.candidate_seen_at) == (11.0, 11.0)
    good = taken(quiet, 3, a=reading(13.0, counts(9, 1)))
    assert not good.has_failed and (good.served_since, good.candidate_seen_at) == (11.0, 13.0)
    untold = taken(BEGUN, 1, a=reading(11.0, Counts(5, 5, {"shed": 0})))
    assert not untold.has_failed
    nobody = taken(BEGUN, 1, a=reading(11.0, NOTHING, counts(5)))
    assert nobody.served_since is None


def test_counts_that_were_lost_are_dated_and_a_new_gateway_loses_none() -> None:
    known = taken(BEGUN, 1, a=reading(11.0, counts(50)))
    assert known.gap_at is None
    lost = taken(known, 2, a=reading(12.0, counts(40)))
    assert lost.gap_at == 12.0 and taken(lost, 3, a=reading(13.0, counts(41))).gap_at == 12.0
    assert taken(known, 2, c=reading(12.0, counts(40))).gap_at is None


# --- stages, servers and blindness ------------------------------------------------------------------------------------


def test_the_same_stage_changes_nothing() -> None:
    state = replace(BEGUN, stage="shifting:1", step=Arms(counts(5), NOTHING))
    assert state.entering("shifting:1", 20.0, POLICY) is state
    assert state.entering("shifting:2", 20.0, POLICY).step == Arms()


def test_blindness_goes_on_over_half_a_minute_without_a_look() -> None:
    blind = EngineState().blinded(100.0, is_blind=True)
    assert blind.blinded(130.0, is_blind=True).blind_since == 100.0
    assert blind.blinded(130.1, is_blind=True).blind_since == 130.1


def test_a_new_server_has_no_first_attempts_yet_and_an_old_one_keeps_its_own() -> None:
    state = replace(
        BEGUN, watches={"errors": GuardTracker(first=(3, 40))}, total=Arms(counts(70), NOTHING), served_since=12.0
    )
    assert state.met_server(None) is state
    new = state.met_server(50.0)
    assert (new.server_since, new.server_base, new.served_since) == (50.0, 70, None)
    assert new.watches["errors"].first == (0, 0)
    served = replace(new, served_since=51.0, watches={"errors": GuardTracker(first=(1, 9))})
    assert served.met_server(50.0) is served
    assert served.met_server(60.0).watches["errors"].first == (0, 0)


def test_a_candidate_without_a_server_is_dated_from_the_first_look() -> None:
    gone = EngineState().looked_for_servers(10.0, 0)
    assert gone.gone_since == 10.0 and gone.looked_for_servers(11.0, 0).gone_since == 10.0
    assert gone.looked_for_servers(12.0, 1).gone_since is None
