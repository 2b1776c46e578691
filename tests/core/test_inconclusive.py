"""When the numbers cannot be trusted: every limit at its very edge, and what is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.deadline import is_late
from rollouts.core.decision import Action, Code, Decision
from rollouts.core.inconclusive import inconclusive_because
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import OnUndecided
from tests.core.test_decide import POLICY, judged, snapshot
from tests.core.test_rollback_rules import HALF

S = RolloutState
ERRORS = POLICY.guards[0]


def found(**over: Any) -> Decision | None:
    return inconclusive_because(snapshot(**over))


def code(**over: Any) -> Code | None:
    held = found(**over)
    return held and held.code


def said(**over: Any) -> str:
    held = found(**over)
    assert held is not None
    return held.reason


# --- telemetry --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_said_in_the_sources_words_or_in_ours() -> None:
    assert said(problem="stale") == "Holding at 25 %: the counters cannot be read."
    assert said(problem="stale", problem_sentence="g1 is 40 s behind") == "Holding at 25 %: g1 is 40 s behind."


def test_a_missing_acknowledgement_is_timed_from_its_deadline_on() -> None:
    late = said(is_acknowledged=False, unacknowledged_s=POLICY.ack_deadline_s)
    assert late == "Waiting for 10 s for the gateways to acknowledge 25 %."
    early = said(is_acknowledged=False, unacknowledged_s=POLICY.ack_deadline_s - 0.1, ack_error="g1 refused it")
    assert early == "Waiting for the gateways to acknowledge 25 %: g1 refused it."


def test_no_attempt_for_the_time_that_the_policy_names_is_no_data() -> None:
    assert code(quiet_s=POLICY.no_data_s) is Code.NO_DATA
    assert code(quiet_s=POLICY.no_data_s - 0.1) is None
    nobody = {"quiet_s": 99.0, "routed_candidate": 0, "routed_stable": 0}
    assert code(**nobody, weight_bp=0) is None  # nothing is sent to it
    assert code(**nobody, weight_bp=1) is Code.NO_DATA


OUTSIDE = replace(ERRORS, indicator="external", label="a")
PROBED = replace(ERRORS, indicator="wrong")


def beside(guard: Any, **over: Any) -> Code | None:
    """The code where only this guard is watched."""
    policy = replace(POLICY, guards=(guard,), **over.pop("policy", {}))
    return code(policy=policy, judged=(replace(judged(0), guard=guard),), **over)


def test_a_source_that_is_silent_for_that_time_is_no_data() -> None:
    assert beside(PROBED, silent_s={"wrong": POLICY.no_data_s}) is Code.NO_DATA
    assert beside(PROBED, silent_s={"wrong": POLICY.no_data_s - 0.1}) is None
    assert beside(PROBED, policy={"no_data_s": 1.0}) is None  # it was never silent
    assert beside(ERRORS, silent_s={"errors": 99.0}) is None  # gateways are known to be silent by themselves


@pytest.mark.parametrize(
    ("guard", "state", "paused_in", "expected"),
    [
        (OUTSIDE, S.SHIFTING, S.SHIFTING, Code.NO_DATA),
        (OUTSIDE, S.SHIFTING, S.SHADOWING, Code.NO_DATA),
        (OUTSIDE, S.SHADOWING, S.SHIFTING, None),  # users' requests do not reach the candidate yet
        (OUTSIDE, S.PAUSED, S.SHIFTING, Code.NO_DATA),
        (OUTSIDE, S.PAUSED, S.SHADOWING, Code.PAUSED),
        (PROBED, S.SHADOWING, S.SHIFTING, Code.NO_DATA),
        (ERRORS, S.SHIFTING, S.SHIFTING, None),
    ],
)
def test_a_source_that_fails_matters_where_its_counts_are_needed(guard, state, paused_in, expected) -> None:
    broken = {"source_problems": {guard.name: "nothing answers"}, "state": state, "paused_in": paused_in}
    assert beside(guard, **broken) is expected
    # Where data is not a must, nothing waits for it.
    lenient = beside(replace(guard, must_have_data=False), **broken)
    assert lenient is (Code.PAUSED if state is S.PAUSED else None)


def test_a_pause_says_so_when_all_can_be_read() -> None:
    assert said(state=S.PAUSED) == "Paused at 25 % until someone resumes it."
    assert code(state=S.PAUSED, problem="stale") is Code.PROVIDER_DOWN


# --- split, gaps and what is shed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("candidate", "stable", "told"), [(1200, 800, "60 %"), (0, 2000, "0 %")])
def test_a_split_that_is_off_says_what_was_measured(candidate: int, stable: int, told: str) -> None:
    assert f"the gateways send {told} of the requests to r2" in said(routed_candidate=candidate, routed_stable=stable)


def test_lost_counts_hold_for_the_shorter_of_the_stage_and_the_limit() -> None:
    held = said(since_gap_s=29.9)
    assert held == "Holding at 25 %: counts were lost 30 s ago; waiting for 30 s without a gap."
    assert code(since_gap_s=30.0) is None
    short = replace(POLICY, steps=tuple(replace(step, min_s=5.0) for step in POLICY.steps))
    assert code(policy=short, since_gap_s=4.9) is Code.NO_DATA and code(policy=short, since_gap_s=5.0) is None


def shed(candidate: int, of: int, stable: int = 0, of_stable: int = 1500) -> Code | None:
    """At the weight that these requests were split by."""
    routed = {"routed_candidate": of, "routed_stable": of_stable, "weight_bp": 10_000 * of // (of + of_stable or 1)}
    return code(shed_candidate=candidate, shed_stable=stable, **routed)


def test_ten_shed_requests_more_than_a_hundredth_and_twice_stables_share_are_shedding() -> None:
    assert shed(10, 500) is Code.NEEDS_REPLICAS and shed(9, 500) is None
    assert shed(11, 1000) is Code.NEEDS_REPLICAS and shed(10, 1000) is None
    assert shed(40, 500, stable=59) is Code.NEEDS_REPLICAS and shed(40, 500, stable=60) is None
    assert shed(40, 0, of_stable=0) is None
    assert shed(40, 150, of_stable=0) is Code.NEEDS_REPLICAS


# --- stable burns -----------------------------------------------------------------------------------------------------


def test_an_incident_is_shared_where_stable_is_over_in_the_last_minute_and_the_candidate_is_over_too() -> None:
    def burning(bad: int, *, is_over: bool = True, **more: Any) -> Code | None:
        one = judged(0, candidate=500, bad_candidate=bad, stable=1000, bad_stable=900, is_stable_over=is_over)
        return code(judged=(replace(one, guard=HALF),), **more)

    assert burning(251) is Code.BOTH_ARMS_BAD
    assert burning(250) is None  # exactly at its limit the candidate is not over it
    assert burning(251, is_over=False) is None  # failures of stable in the stage before do not matter
    one = judged(0, bad_candidate=40, bad_stable=600, is_stable_over=True)
    assert "errors of r1 were over 1.3 % in the last minute too, so it is not the release" in said(judged=(one,))


def test_only_what_is_held_against_the_candidate_makes_it_share_an_incident() -> None:
    one = judged(0, candidate=500, bad_candidate=40, own_candidate=2, stable=1000, bad_stable=90, is_stable_over=True)
    assert code(judged=(one, judged(1))) is None


# --- past the deadline ------------------------------------------------------------------------------------------------


def test_a_stage_is_late_from_its_deadline_on() -> None:
    assert is_late(snapshot(now=1500.0)) and not is_late(snapshot(now=1499.9))  # 600 s after 900
    waiting = {"step_started_at": None, "is_acknowledged": False}
    assert is_late(snapshot(**waiting, unacknowledged_s=600.0))
    assert not is_late(snapshot(**waiting, unacknowledged_s=599.9))


def test_a_hold_past_the_deadline_is_marked_as_late_and_a_shared_incident_never_rolls_back() -> None:
    held = found(quiet_s=99.0, now=1500.0)
    assert held is not None and (held.action, held.facts["is_late"]) == (Action.HOLD, True)
    strict = replace(POLICY, on_undecided=OnUndecided.ROLL_BACK)
    back = found(quiet_s=99.0, now=1500.0, policy=strict)
    assert back is not None and (back.action, back.facts["is_late"]) == (Action.ROLL_BACK, True)
    early = found(quiet_s=99.0, now=1499.9, policy=strict)
    assert early is not None and early.action is Action.HOLD and "is_late" not in early.facts
    both = judged(0, bad_candidate=40, bad_stable=600, is_stable_over=True)
    assert code(judged=(both,), now=1500.0, policy=strict) is Code.BOTH_ARMS_BAD


def test_calls_that_force_a_release_are_refused_once_they_took_evidence_from_a_guard() -> None:
    def starved(left_out: int, used: int, log_e_fine: float = 0.0, **over: bool) -> Decision | None:
        guard = replace(ERRORS, indicator="slow", threshold_us=250_000)
        slow = replace(judged(), guard=guard, log_e_fine=log_e_fine)
        return found(judged=(slow,), forced={slow.guard.name: (left_out, used)}, **over)

    assert starved(4, 0) is None and starved(5, 95) is None and starved(6, 94, POLICY.bar_fine) is None
    held = starved(6, 94)
    assert held is not None and (held.action, held.code) == (Action.HOLD, Code.NO_DATA)
    assert held.reason == (
        "Holding at 25 %: 6 of 100 readings give no evidence of slow requests (over 250 ms), because calls forced a release "
        "meanwhile; from now on the gateways refuse such calls."
    )
    assert held.facts["refuse_forced"]
    assert starved(6, 94, refuses_forced=True) is None  # the stage then waits for proof alone
