"""A first crossing takes the traffic away, a later one convicts; hard facts convict at once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.engine_state import EngineState
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import ONE_LOOK, SecondLook, WhenStableIsGone
from rollouts.core.policy_schema import followed_policy, parse_policy
from rollouts.core.second_look import crossing_words
from rollouts.core.snapshot import Snapshot
from tests.core.test_decide import OBJECTIVES, STEPS, judged
from tests.core.test_decide import snapshot as plain_snapshot

S = RolloutState
LOOKS = {"looks": 2, "after_s": 60, "alpha_second": 0.05}
WRONG = {"indicator": "wrong"}
POLICY = parse_policy(
    {"steps": STEPS, "second_look": LOOKS, "guards": [{"indicator": "errors"}, WRONG], "budget_bad": 100}, OBJECTIVES
).facing(has_stable=True)
BROKEN = {"bad_candidate": 50, "log_e_worse": 30.0}
CROSSINGS: dict[Code, dict[str, Any]] = {
    Code.WORSE_THAN_STABLE: {"judged": (judged(0, POLICY, **BROKEN), judged(1, POLICY))},
    Code.OBJECTIVE_BREACHED: {
        "judged": (judged(0, POLICY, bad_candidate=90, log_e_over=30.0, log_e_worse=3.0), judged(1, POLICY))
    },
    Code.ALL_FAILING: {"all_failing": 10, "all_failing_s": 1.0},
}
HARD: dict[str, tuple[dict[str, Any], Code]] = {
    "contents": ({"digest_mismatch": "The server runs other contents."}, Code.DIGEST_MISMATCH),
    "no server": ({"is_candidate_gone": True}, Code.SERVERS_GONE),
    "budget": ({"harm": {"errors": (500.0, 1.0)}}, Code.BUDGET_SPENT),
    "wrong answers": ({"judged": (judged(0, POLICY), judged(1, POLICY, **BROKEN))}, Code.WORSE_THAN_STABLE),
}
SERVING = sorted(LIVE - {S.SECOND_LOOK})


def snapshot(**over: Any) -> Snapshot:
    return plain_snapshot(**{"policy": POLICY, "judged": (judged(0, POLICY), judged(1, POLICY)), **over})


def away(**over: Any) -> Snapshot:
    """The traffic was taken away 61 s ago, and nothing else is wrong."""
    return snapshot(
        **{
            "state": S.SECOND_LOOK, "look": 2, "weight_bp": 0, "step_index": -1, "step_started_at": 939.0, "server_age_s": 500.0,
            "crossed_because": "Traffic taken away at 25 %: errors 12 of 74 against 0 of 220.", "shed_candidate": 0, **over,
        }
    )  # fmt: skip


@pytest.mark.parametrize("state", SERVING)
@pytest.mark.parametrize("code", CROSSINGS)
def test_a_first_crossing_takes_the_traffic_away_and_the_last_one_convicts(code: Code, state: RolloutState) -> None:
    first = decide(snapshot(**CROSSINGS[code], state=state))
    assert (first.action, first.code) == (Action.WITHDRAW, code)
    assert first.reason.endswith("Traffic taken away at 25 %; r2 begins again after 60 s. Look 1 of 2.")
    second = decide(snapshot(**CROSSINGS[code], state=state, look=2))
    assert (second.action, second.code) == (Action.ROLL_BACK, code) and second.reason.endswith("Rolling back to r1.")
    once = decide(snapshot(**CROSSINGS[code], state=state, policy=replace(POLICY, second_look=ONE_LOOK)))
    assert once.action is Action.ROLL_BACK


@pytest.mark.parametrize("state", SERVING)
@pytest.mark.parametrize("fact", HARD)
def test_what_no_incident_explains_convicts_at_once(fact: str, state: RolloutState) -> None:
    over, code = HARD[fact]
    done = decide(snapshot(**over, state=state))
    assert (done.action, done.code) == (Action.ROLL_BACK, code)


def test_a_spent_budget_is_worse_than_a_crossing() -> None:
    done = decide(snapshot(**CROSSINGS[Code.WORSE_THAN_STABLE], harm={"errors": (500.0, 1.0)}))
    assert (done.action, done.code) == (Action.ROLL_BACK, Code.BUDGET_SPENT)


@pytest.mark.parametrize("code", CROSSINGS)
def test_where_nothing_can_be_taken_back_it_is_as_before(code: Code) -> None:
    gone = decide(snapshot(**CROSSINGS[code], stable_servers=0))
    assert (gone.action, gone.code) == (Action.HOLD, Code.NO_ROLLBACK_TARGET)


@pytest.mark.parametrize("fact", ["contents", "no server", "wrong answers"])
@pytest.mark.parametrize("state", [S.SECOND_LOOK, S.PAUSED])
def test_hard_facts_convict_during_the_wait(fact: str, state: RolloutState) -> None:
    over, code = HARD[fact]
    done = decide(away(**over, state=state, paused_in=S.SECOND_LOOK))
    assert (done.action, done.code) == (Action.ROLL_BACK, code)


@pytest.mark.parametrize("code", CROSSINGS)
def test_late_answers_of_the_look_before_are_no_evidence(code: Code) -> None:
    assert decide(away(**CROSSINGS[code], now=950.0)).code is Code.SECOND_LOOK
    late = decide(away(**CROSSINGS[code]))
    assert (late.action, late.code) == (Action.START, Code.SECOND_LOOK)


def test_it_waits_and_begins_again_at_the_first_weight() -> None:
    held = decide(away(now=959.0))
    assert held.action is Action.HOLD and held.reason == (
        "Traffic taken away at 25 %: errors 12 of 74 against 0 of 220. Begins again in 40 s. Look 1 of 2."
    )
    begun = decide(away())
    assert (begun.action, begun.facts) == (Action.START, {"to_index": 0})
    assert begun.reason == "r2 begins again at 5 %. Look 2 of 2."


WAITS: dict[str, tuple[dict[str, Any], str]] = {
    "weight 0 is not acknowledged": ({"step_started_at": None}, "Waiting for the gateways"),
    "counters do not show it": ({"is_confirmed": False, "now": 960.0}, "Waiting for counters"),
    "no server": ({"candidate_servers": 0}, "Begins again once a server of r2 has answered probes for 10 s."),
    "a new server": ({"server_age_s": 4.0}, "Begins again once a server of r2 has answered probes for 10 s."),
    "blind": ({"problem": "stale", "problem_sentence": "gateway-1 is silent."}, "nothing is opened blindly"),
    "a report that expired": ({"report_problem": "The report has expired."}, "may not begin again: The report"),
}


@pytest.mark.parametrize("name", WAITS)
def test_it_does_not_begin_before_it_can_be_judged(name: str) -> None:
    over, said = WAITS[name]
    held = decide(away(**over))
    assert held.action is Action.HOLD and said in held.reason


def test_counters_that_never_show_it_hold_it_up_for_half_a_minute_only() -> None:
    assert decide(away(is_confirmed=False)).action is Action.START


def test_a_candidate_without_a_steady_server_is_convicted_after_the_time_to_prepare() -> None:
    late = decide(away(candidate_servers=0, now=939.0 + POLICY.prepare_deadline_s))
    assert (late.action, late.code) == (Action.ROLL_BACK, Code.NEVER_READY)


def test_a_dead_stable_release_holds_and_the_policy_may_replace_it() -> None:
    held = decide(away(stable_servers=0))
    assert (held.action, held.code) == (Action.HOLD, Code.STABLE_NOT_READY)
    asked = replace(POLICY, when_stable_is_gone=WhenStableIsGone.REPLACE, stable_gone_s=5.0)
    assert decide(away(stable_servers=0, stable_gone_s=9.0, policy=asked)).action is Action.REPLACE


def test_it_opens_as_any_other_opening_does() -> None:
    approved = replace(POLICY, approvals={"start": 1})
    held = decide(away(policy=approved))
    assert (held.action, held.code) == (Action.HOLD, Code.AWAITING_APPROVAL)
    assert decide(away(policy=approved, approvals={"start": 1})).action is Action.START


def test_a_paused_rollout_stays_paused_at_weight_0() -> None:
    done = decide(away(paused_in=S.PAUSED))
    assert (done.action, done.code) == (Action.PAUSE, Code.PAUSED)
    held = decide(away(state=S.PAUSED, paused_in=S.SECOND_LOOK))
    assert (held.action, held.code) == (Action.HOLD, Code.PAUSED)


def test_a_crossing_while_shadowing_begins_again_with_shadowing() -> None:
    shadow = {"sample_pct": 10, "min_s": 1, "min_samples": 10, "deadline_s": 600}
    policy = parse_policy(
        {"steps": STEPS, "shadow": shadow, "second_look": LOOKS, "guards": [{"indicator": "errors"}, WRONG]}, OBJECTIVES
    ).facing(has_stable=True)
    assert decide(away(policy=policy, crossed_in=S.SHADOWING)).action is Action.SHADOW
    assert decide(away(policy=policy)).action is Action.START


def test_a_later_look_has_its_own_bar() -> None:
    errors = POLICY.guards[0]
    first, second = POLICY.bar_worse_of(errors), POLICY.at_look(2).bar_worse_of(errors)
    assert first - second == pytest.approx(math.log(0.05 / 0.01)) and POLICY.at_look(1) is POLICY
    own = parse_policy({"second_look": LOOKS, "guards": [{"indicator": "errors", "alpha": 0.004}, WRONG]}, OBJECTIVES)
    later = own.at_look(2)
    assert sum(2 * later.stages * later.alpha_of_one_test(one) for one in later.guards) == pytest.approx(0.05)


def test_a_policy_that_was_stored_before_there_were_looks_has_one() -> None:
    whole = dict(POLICY.document)
    assert followed_policy(json.dumps(whole), has_stable=True).second_look == SecondLook(2, 60, 0.05)
    del whole["second_look"]
    assert followed_policy(json.dumps(whole), has_stable=True).second_look == ONE_LOOK


def test_the_next_look_begins_with_nothing_known_of_the_candidate() -> None:
    state = EngineState(
        stage="shifting:0:500",
        has_failed=True,
        watches={"errors": GuardTracker(first_bad_at=5.0)},
        harm={"errors": (7.0, 2.0)},
    )
    away_now = state.entering("second_look", 10.0, POLICY)
    assert not away_now.has_failed and away_now.watches["errors"].first_bad_at is None
    assert away_now.harm == {"errors": (7.0, 2.0)}
    late = replace(away_now, has_failed=True)
    assert not late.entering("shifting:0:500", 70.0, POLICY).has_failed


def test_a_crossing_is_told_in_one_sentence() -> None:
    counts = {"bad_candidate": 12, "candidate": 74, "bad_stable": 0, "stable": 220}
    record = {"code": "worse_than_stable", "words": "errors", "counts": counts, "weight_bp": 2500}
    assert crossing_words(record) == "Traffic taken away at 25 %: errors 12 of 74 against 0 of 220."
