"""When a release counts as broken: every limit at its very edge, the budget by hand, and which of several findings speaks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.decision import Action, Code, Decision
from rollouts.core.evidence import Tolerance
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Guard
from rollouts.core.rules.table import findings, most_severe
from rollouts.core.snapshot import Snapshot
from tests.core.test_decide import ALONE, POLICY, judged, snapshot

ERRORS, SLOW, _ = POLICY.guards
BAR = POLICY.bar_worse_of(ERRORS)
BELOW = math.nextafter(BAR, 0)
#: An objective of one half, so that a share can be exactly at its limit.
HALF = replace(ERRORS, max_frac=0.5, roll_back_over=Tolerance(1.0, 0.0))


def code_of(found: Decision | None) -> Code | None:
    return found and found.code


def breach(s: Snapshot) -> Decision | None:
    return most_severe(findings(s))


def found_by(*guards: Judged, **over: Any) -> Code | None:
    return code_of(breach(snapshot(judged=guards, **over)))


def of(guard: Guard, **over: Any) -> Judged:
    return replace(judged(0), guard=guard, **over)


# --- hard facts -------------------------------------------------------------------------------------------------------


def test_a_candidate_without_servers_is_to_blame_unless_stable_has_none_either() -> None:
    gone = {"is_candidate_gone": True}
    assert code_of(breach(snapshot(**gone, stable_servers=1))) is Code.SERVERS_GONE
    assert code_of(breach(snapshot(**gone, stable_servers=None))) is Code.SERVERS_GONE
    assert code_of(breach(snapshot(**gone, stable_servers=0))) is Code.BOTH_ARMS_BAD
    alone = breach(snapshot(**gone, stable_servers=0, has_stable=False))
    assert alone is not None and alone.facts["breach"] == "servers_gone"


def row(**over: Any) -> Snapshot:
    return snapshot(**{"all_failing": POLICY.all_failing_attempts, "all_failing_s": 1.0, **over})


def test_a_row_of_failures_needs_its_attempts_and_more_than_one_instant() -> None:
    assert code_of(breach(row())) is Code.ALL_FAILING
    assert breach(row(all_failing=POLICY.all_failing_attempts - 1)) is None
    assert breach(row(all_failing_s=0.4)) is None  # one cut connection
    assert code_of(breach(row(all_failing_s=0.41))) is Code.ALL_FAILING


def test_of_a_row_only_those_count_that_stable_could_save() -> None:
    assert code_of(breach(row(own_failing=POLICY.all_failing_attempts))) is Code.ALL_FAILING
    assert code_of(breach(row(own_failing=POLICY.all_failing_attempts - 1))) is Code.BOTH_ARMS_BAD
    assert code_of(breach(row(is_stable_better=False))) is Code.BOTH_ARMS_BAD


def test_a_row_comes_by_chance_only_where_stables_errors_are_over() -> None:
    def with_stable_over(index: int | None) -> Code | None:
        guards = [judged(one, is_stable_over=one == index) for one in range(2)]
        return code_of(breach(row(judged=tuple(guards))))

    assert with_stable_over(0) is Code.BOTH_ARMS_BAD
    assert with_stable_over(None) is Code.ALL_FAILING
    assert with_stable_over(1) is Code.ALL_FAILING  # a slow stable makes nothing fail
    alone = row(judged=(judged(0, ALONE),), has_stable=False, policy=ALONE)
    found = breach(alone)
    assert found is not None and found.facts["breach"] == "all_failing"


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_against_stable_convicts_from_the_bar_on() -> None:
    assert found_by(judged(0, bad_candidate=50, log_e_worse=BAR)) is Code.WORSE_THAN_STABLE
    assert found_by(judged(0, bad_candidate=50, log_e_worse=BELOW)) is None
    assert found_by(judged(0, bad_candidate=50, log_e_worse=99.0), has_stable=False) is None


def test_an_objective_is_held_against_the_candidate_from_the_bar_on() -> None:
    over = {"bad_candidate": 50, "log_e_worse": 3.0}
    assert found_by(judged(0, **over, log_e_over=BAR)) is Code.OBJECTIVE_BREACHED
    assert found_by(judged(0, **over, log_e_over=BELOW)) is None


def test_twenty_attempts_of_stable_tell_whether_it_burns_too() -> None:
    over = {"bad_candidate": 50, "log_e_worse": 3.0, "log_e_over": 99.0, "bad_stable": 0}
    assert found_by(judged(0, **over, stable=20)) is Code.OBJECTIVE_BREACHED
    assert found_by(judged(0, **over, stable=19)) is None
    few = judged(0, ALONE, bad_candidate=50, log_e_over=99.0, stable=0)
    found = breach(snapshot(judged=(few,), has_stable=False, policy=ALONE))
    assert found is not None and found.facts["breach"] == "objective_breached"


def test_what_stable_failed_before_its_last_minute_is_no_excuse() -> None:
    over = {"bad_candidate": 400, "candidate": 500, "log_e_over": 99.0, "log_e_worse": 3.0, "stable": 1000}
    assert found_by(of(HALF, **over, bad_stable=900)) is Code.OBJECTIVE_BREACHED
    assert found_by(of(HALF, **over, bad_stable=0, is_stable_over=True)) is Code.BOTH_ARMS_BAD


def test_an_objective_convicts_where_the_candidate_looks_worse_ten_to_one() -> None:
    over = {"bad_candidate": 50, "log_e_over": 99.0}
    ten = math.log(10)
    assert found_by(judged(0, **over, log_e_worse=ten)) is Code.OBJECTIVE_BREACHED
    assert found_by(judged(0, **over, log_e_worse=math.nextafter(ten, 0))) is Code.BOTH_ARMS_BAD
    promoting = {"is_promoting": True, "state": RolloutState.BAKING}
    assert found_by(judged(0, **over, log_e_worse=-2.0), **promoting) is Code.OBJECTIVE_BREACHED


def test_a_candidate_proven_better_than_a_burning_stable_is_not_held_up() -> None:
    over = {"bad_candidate": 300, "candidate": 500, "log_e_over": 99.0, "log_e_worse": -9.0, "stable": 1000}
    fine = POLICY.bar_fine
    assert found_by(of(HALF, **over, bad_stable=900, log_e_better=fine)) is None
    assert found_by(of(HALF, **over, bad_stable=900, log_e_better=math.nextafter(fine, 0))) is Code.BOTH_ARMS_BAD
    # At its limit stable does not burn, so there is nothing to mend.
    assert found_by(of(HALF, **over, bad_stable=500, log_e_better=99.0)) is Code.BOTH_ARMS_BAD


# --- the budget -------------------------------------------------------------------------------------------------------


def spent(*, budget: int, guard: Guard = ERRORS, phi: float = 1.0, **over: Any) -> Code | None:
    return found_by(of(guard, phi=phi), policy=replace(POLICY, guards=(guard,), budget_bad=budget), **over)


@pytest.mark.parametrize(
    ("excess", "variance", "phi", "budget"),
    [(50.0, 0.0, 1.0, 50), (90.0, 100.0, 1.0, 50), (90.0, 25.0, 4.0, 50)],  # 4 standard deviations are 0, 40 and 40
)
def test_the_budget_is_spent_when_four_standard_deviations_below_the_cost_reach_it(
    excess, variance, phi, budget
) -> None:
    assert spent(budget=budget, phi=phi, harm={"errors": (excess, variance)}) is Code.BUDGET_SPENT
    assert spent(budget=budget, phi=phi, harm={"errors": (excess - 0.01, variance)}) is None


def test_only_failures_and_wrong_answers_cost_the_budget() -> None:
    harm = dict.fromkeys(("errors", "wrong", "slow_250ms", "external_a"), (1000.0, 0.0))
    wrong, external = replace(ERRORS, indicator="wrong"), replace(ERRORS, indicator="external", label="a")
    found = [spent(budget=50, guard=one, harm=harm) for one in (ERRORS, wrong, SLOW, external)]
    assert found == [Code.BUDGET_SPENT, Code.BUDGET_SPENT, None, None]
    both = snapshot(judged=(judged(1), judged(0)), policy=replace(POLICY, budget_bad=50), harm=harm)
    assert code_of(breach(both)) is Code.BUDGET_SPENT  # whatever the order of the guards


def test_a_guard_that_has_cost_nothing_spends_nothing() -> None:
    assert spent(budget=1) is None
    assert spent(budget=1, harm={"errors": (0.0, 0.0)}) is None
    assert spent(budget=1, harm={"errors": (5.0, 0.0)}, has_stable=False) is None


def test_refused_requests_cost_what_stable_would_surely_not_have_refused() -> None:
    """364 of 500 refused where stable's share would be 36: 328 more, less four times the root of 400."""
    refused = {"shed_candidate": 364, "routed_candidate": 500, "shed_stable": 108, "routed_stable": 1500}
    assert spent(budget=248, **refused) is Code.BUDGET_SPENT
    assert spent(budget=249, **refused) is None
    assert spent(budget=1, **{**refused, "routed_stable": 0}) is None  # nobody to compare with
    assert spent(budget=1, **{**refused, "shed_candidate": 0, "shed_stable": 0}) is None


# --- which of several -------------------------------------------------------------------------------------------------


def test_rolling_back_beats_pausing_and_pausing_beats_holding() -> None:
    lenient = replace(ERRORS, is_critical=False)
    pausing = of(lenient, bad_candidate=60, log_e_worse=99.0)
    convicting = judged(1, bad_candidate=90, log_e_worse=99.0)
    excused = judged(1, bad_candidate=90, log_e_worse=99.0)
    both = breach(snapshot(judged=(pausing, convicting)))
    assert both is not None and both.action is Action.ROLL_BACK
    cold = {"attempts_since_server": 1}  # excuses slowness only
    held = breach(snapshot(judged=(excused,), **cold))
    assert held is not None and held.action is Action.HOLD
    for guards in ((excused, pausing), (pausing, excused)):
        found = breach(snapshot(judged=guards, **cold))
        assert found is not None and found.action is Action.PAUSE


def test_what_is_paused_already_is_held_and_not_paused_again() -> None:
    lenient = of(replace(ERRORS, is_critical=False), bad_candidate=60, log_e_worse=99.0)
    paused = breach(snapshot(judged=(lenient,), state=RolloutState.PAUSED))
    assert paused is not None and (paused.action, paused.code) == (Action.HOLD, Code.WORSE_THAN_STABLE)
    shifting = breach(snapshot(judged=(lenient,)))
    assert shifting is not None and (shifting.action, shifting.facts["breach"]) == (Action.PAUSE, "worse_than_stable")
