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
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import ONE_LOOK, OnUndecided, SecondLook, WhenStableIsGone
from rollouts.core.policy_schema import followed_policy, parse_policy
from rollouts.core.rules.all_failing import AllFailing
from rollouts.core.rules.budget import SpentBudget
from rollouts.core.rules.mostly_failing import MostlyFailing
from rollouts.core.rules.second_look import SteadyServer, crossing_words
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.snapshot import Desired, Identity, Observed, Snapshot
from tests.core.test_decide import OBJECTIVES, STEPS, judged
from tests.core.test_decide import snapshot as plain_snapshot
from tests.support.worlds.snapshots import keeping

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
    Code.MOSTLY_FAILING: {"mostly": MostlyFailing(4, 1.0, 4.0, 60, 80, 0, 240, 45.0, 10.0)},
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


@pytest.mark.parametrize("code", sorted(set(CROSSINGS) - {Code.MOSTLY_FAILING}))
def test_a_promotion_under_way_is_taken_back_as_any_other_stage(code: Code) -> None:
    done = decide(snapshot(**CROSSINGS[code], state=S.BAKING, is_promoting=True, weight_bp=10_000))
    assert (done.action, done.code) == (Action.WITHDRAW, code)


@pytest.mark.parametrize("code", [Code.WORSE_THAN_STABLE, Code.OBJECTIVE_BREACHED])
def test_a_guard_that_is_not_critical_pauses_at_each_look(code: Code) -> None:
    errors, wrong = CROSSINGS[code]["judged"]
    soft = replace(errors, guard=replace(errors.guard, is_critical=False))
    for look in (1, 2):
        done = decide(snapshot(judged=(soft, wrong), look=look))
        assert (done.action, done.code) == (Action.PAUSE, code)


@pytest.mark.parametrize("code", [Code.OBJECTIVE_BREACHED, Code.ALL_FAILING])
def test_a_first_release_is_paused_and_keeps_its_traffic(code: Code) -> None:
    alone = followed_policy(json.dumps(POLICY.document), has_stable=False)
    done = decide(snapshot(**CROSSINGS[code], has_stable=False, policy=alone, weight_bp=10_000, step_index=0))
    assert (done.action, done.code) == (Action.PAUSE, Code.NO_ROLLBACK_TARGET)


@pytest.mark.parametrize("look", [1, 2])
@pytest.mark.parametrize("state", SERVING)
@pytest.mark.parametrize("fact", HARD)
def test_what_no_incident_explains_convicts_at_once(fact: str, state: RolloutState, look: int) -> None:
    over, code = HARD[fact]
    done = decide(snapshot(**over, state=state, look=look))
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
    "begun by hand, without counters": (
        {"is_begun_by_hand": True, "is_confirmed": False, "now": 945.0},
        "Waiting for counters",
    ),
    "blind": ({"problem": "stale", "problem_sentence": "gateway-1 is silent."}, "nothing is opened blindly"),
    "a report that expired": ({"report_problem": "The report has expired."}, "may not begin again: The report"),
}


@pytest.mark.parametrize("name", WAITS)
def test_it_does_not_begin_before_it_can_be_judged(name: str) -> None:
    over, said = WAITS[name]
    held = decide(away(**over))
    assert held.action is Action.HOLD and said in held.reason


@pytest.mark.parametrize("now", [940.0, 990.0, 2000.0])
def test_a_pause_during_the_wait_promises_no_beginning(now: float) -> None:
    for late in (POLICY, replace(POLICY, deadline_s=1.0, on_undecided=OnUndecided.ROLL_BACK)):
        held = decide(away(state=S.PAUSED, paused_in=S.SECOND_LOOK, now=now, policy=late, total_s=now))
        assert (held.action, held.code) == (Action.HOLD, Code.PAUSED) and "Begins again in" not in held.reason


def test_a_person_ends_the_wait_at_once() -> None:
    assert decide(away(now=945.0)).action is Action.HOLD
    begun = decide(away(now=945.0, is_begun_by_hand=True))
    assert (begun.action, begun.code) == (Action.START, Code.SECOND_LOOK)
    unready = decide(away(now=945.0, is_begun_by_hand=True, server_age_s=4.0))
    assert (unready.action, unready.code) == (Action.HOLD, Code.SECOND_LOOK)


def test_past_the_deadline_only_a_person_begins_the_next_look() -> None:
    held = decide(away(total_s=POLICY.deadline_s, rollout_id=7))
    assert (held.action, held.code) == (Action.HOLD, Code.OVERDUE)
    assert held.reason.endswith("a person must begin its next look (`sluicegate rollout resume 7`) or take it back.")
    assert decide(away(total_s=POLICY.deadline_s, is_begun_by_hand=True)).action is Action.START
    strict = replace(POLICY, on_undecided=OnUndecided.ROLL_BACK)
    assert decide(away(total_s=POLICY.deadline_s, policy=strict)).code is Code.OVERDUE


def test_a_blind_wait_ends_as_the_policy_states() -> None:
    blind = {"problem": "stale", "problem_sentence": "gateway-1 is silent.", "blind_s": POLICY.blind_limit_s}
    assert decide(away(**blind)).action is Action.HOLD
    strict = replace(POLICY, on_blind=OnUndecided.ROLL_BACK)
    done = decide(away(**blind, policy=strict))
    assert (done.action, done.code) == (Action.ROLL_BACK, Code.BLIND)
    assert decide(away(**blind, policy=strict, state=S.PAUSED, paused_in=S.SECOND_LOOK)).action is Action.HOLD


def test_counters_that_never_show_it_hold_it_up_for_half_a_minute_only() -> None:
    assert decide(away(is_confirmed=False)).action is Action.START


def test_a_candidate_without_a_steady_server_is_convicted_after_the_time_to_prepare() -> None:
    late = decide(away(candidate_servers=0, unsteady_s=POLICY.prepare_deadline_s))
    assert (late.action, late.code) == (Action.ROLL_BACK, Code.SERVERS_GONE)


def test_a_new_server_after_a_long_wait_convicts_nobody() -> None:
    """A freeze window holds the next look for a day, and then a replica is replaced."""
    held = decide(away(server_age_s=4.0, unsteady_s=4.0, now=939.0 + 86_000))
    assert (held.action, held.code) == (Action.HOLD, Code.SECOND_LOOK)


def ticked(state: EngineState, tick: int, **seen: Any) -> EngineState:
    """The state after a tick while the traffic is away, of a second after the tick before."""
    desired = Desired(S.SECOND_LOOK, step_index=-1, look=2)
    observed = Observed(1000.0 + tick, step_started_at=1000.0, stable_servers=1, **seen)
    return evaluate(TickInput(tick, POLICY, Identity(), desired, observed, state), gone_over_s=60.0).engine_state


def test_the_time_without_a_steady_server_is_measured() -> None:
    state = EngineState()
    for tick in range(1, 4):  # a server that starts again and again is never steady
        state = ticked(state, 10 * tick, candidate_servers=1, server_since=1000.0 + 10 * tick - 1)
    assert state.of(SteadyServer) == SteadyServer(1010.0)
    assert EngineState.from_json(state.to_json()).of(SteadyServer) == SteadyServer(1010.0)
    state = ticked(state, 60, candidate_servers=1, server_since=1029.0)
    assert state.of(SteadyServer) == SteadyServer() and "second_look" not in state.to_json()["rules"]
    state = ticked(state, 61, candidate_servers=0)
    assert state.of(SteadyServer) == SteadyServer(1061.0)
    assert state.entering("shifting:0:500", 1100.0, POLICY).of(SteadyServer) == SteadyServer()


def test_a_dead_stable_release_holds_and_the_policy_may_replace_it() -> None:
    held = decide(away(stable_servers=0))
    assert (held.action, held.code) == (Action.HOLD, Code.STABLE_GONE)
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
    failed, harm = CandidateServers(has_failed=True), SpentBudget({"errors": (7.0, 2.0)})
    watches = {"errors": GuardTracker(first_bad_at=5.0)}
    state = keeping(failed, harm, AllFailing(3, 1.0, 2.0), stage="shifting:0:500", watches=watches)
    away_now = state.entering("second_look", 10.0, POLICY)
    assert away_now.of(CandidateServers) == CandidateServers() and away_now.of(AllFailing) == AllFailing()
    assert away_now.watches["errors"].first_bad_at is None and away_now.of(SpentBudget) == harm
    late = keeping(failed, stage="second_look")
    assert not late.entering("shifting:0:500", 70.0, POLICY).of(CandidateServers).has_failed


def test_a_crossing_is_told_in_one_sentence() -> None:
    counts = {"bad_candidate": 12, "candidate": 74, "bad_stable": 0, "stable": 220}
    record = {"code": "worse_than_stable", "words": "errors", "counts": counts, "weight_bp": 2500}
    assert crossing_words(record) == "Traffic taken away at 25 %: errors 12 of 74 against 0 of 220."
