"""What is looked for before a release is blamed, and what stops it from being opened although it is proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.freeze import FreezeWindow
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import OnUndecided
from rollouts.core.policy_schema import parse_policy
from rollouts.core.request_mix import Mix, mix_of
from rollouts.core.snapshot import Snapshot
from tests.core.test_decide import ALONE, OBJECTIVES, POLICY, STEPS, judged, snapshot
from tests.support.worlds.snapshots import changed

S = RolloutState
WORSE: dict[str, Any] = {"bad_candidate": 60, "log_e_worse": 30.0}
ERRORS_WORSE = (judged(0, **WORSE), judged(1))
SLOW_WORSE = (judged(0), judged(1, **WORSE))
OTHER_MIX = Mix((900, 100, 0), (100, 900, 0))


# --- mix --------------------------------------------------------------------------------------------------------------


def test_the_mix_differs_only_when_it_matters_and_chance_cannot_explain_it() -> None:
    assert OTHER_MIX.differs
    assert not Mix((90, 10, 0), (10, 90, 0)).differs  # too few
    assert not Mix((500, 500), (520, 480)).differs  # too little
    assert not Mix((1000, 0), (900, 0)).differs  # one class only
    assert not Mix().differs


def test_classes_come_from_counters_over_an_edge() -> None:
    found = mix_of({"over_1k": 30, "over_8k": 10}, 100, {"over_1k": 5, "over_8k": 0}, 50, ("over_1k", "over_8k"))
    assert found == Mix((70, 20, 10), (45, 5, 0))
    assert mix_of({}, 100, {}, 50, ("over_1k",)) == Mix()


@pytest.mark.parametrize(("index", "bad"), [(0, 12), (1, 60)])
@pytest.mark.parametrize("proof", [{"log_e_worse": 30.0}, {"log_e_worse": 3.0, "log_e_over": 30.0}])
def test_another_mix_excuses_the_evidence_of_every_guard(index: int, bad: int, proof: dict) -> None:
    found = tuple(judged(i, bad_candidate=bad, **proof) if i == index else judged(i) for i in range(2))
    held = decide(snapshot(judged=found, mix=OTHER_MIX))
    assert (held.action, held.code) == (Action.HOLD, Code.CONFOUNDED) and "other requests than r1" in held.reason


def test_a_class_that_stable_refuses_more_excuses_as_another_mix_does() -> None:
    found = (judged(0, bad_candidate=12, log_e_worse=30.0), judged(1))
    shed = {"routed_candidate": 1000, "routed_stable": 3000, "shed_candidate": 3, "shed_stable": 10}
    held = decide(snapshot(judged=found, classes=OTHER_MIX, **shed))
    assert (held.action, held.code) == (Action.HOLD, Code.CONFOUNDED) and "stable refuses more" in held.reason
    assert decide(snapshot(judged=found, classes=Mix((500, 500), (520, 480)), **shed)).action is Action.ROLL_BACK


@pytest.mark.parametrize("shed_stable", [0, 9])
def test_a_class_that_the_candidate_itself_refuses_excuses_nothing(shed_stable: int) -> None:
    found = (judged(0, bad_candidate=12, log_e_worse=30.0), judged(1))
    shed = {"routed_candidate": 1000, "routed_stable": 3000, "shed_candidate": 3, "shed_stable": shed_stable}
    assert decide(snapshot(judged=found, classes=OTHER_MIX, **shed)).action is Action.ROLL_BACK


@pytest.mark.parametrize(("index", "bad"), [(0, 60), (1, 300)])
def test_no_mix_explains_that_many(index: int, bad: int) -> None:
    found = tuple(judged(i, bad_candidate=bad, log_e_worse=30.0) if i == index else judged(i) for i in range(2))
    assert decide(snapshot(judged=found, mix=OTHER_MIX)).action is Action.ROLL_BACK


def test_a_mix_does_not_excuse_the_budget() -> None:
    spent = snapshot(policy=replace(POLICY, budget_bad=50), harm={"errors": (90.0, 64.0)}, mix=OTHER_MIX)
    assert decide(spent).code is Code.BUDGET_SPENT
    slow = snapshot(policy=replace(POLICY, budget_bad=50), harm={"slow_250ms": (900.0, 64.0)})
    assert decide(slow).action is Action.ADVANCE  # a slow request is not a bad one


# --- hardware and cold start ------------------------------------------------------------------------------------------


def test_other_hardware_excuses_slowness_and_nothing_else() -> None:
    differs = {"hardware": "r2 runs on L4, r1 on H100"}
    held = decide(snapshot(judged=SLOW_WORSE, **differs))
    assert (held.action, held.code) == (Action.HOLD, Code.CONFOUNDED) and "runs on L4" in held.reason
    assert decide(snapshot(judged=ERRORS_WORSE, **differs)).code is Code.WORSE_THAN_STABLE


def test_a_server_that_has_hardly_answered_is_cold() -> None:
    held = decide(snapshot(judged=SLOW_WORSE, attempts_since_server=5))
    assert (held.action, held.code) == (Action.HOLD, Code.CONFOUNDED) and "5 of 20" in held.reason
    assert decide(snapshot(judged=ERRORS_WORSE, attempts_since_server=5)).code is Code.WORSE_THAN_STABLE


def test_slowness_that_is_over_was_warm_up_and_its_evidence_is_dropped() -> None:
    young = snapshot(judged=SLOW_WORSE, attempts_since_server=400, server_age_s=30.0)
    over = decide(changed(young, recent={"slow_250ms": (0, 60)}))
    assert (over.action, over.code, over.facts["forget"]) == (Action.HOLD, Code.CONFOUNDED, "slow_250ms")
    assert decide(changed(young, recent={"slow_250ms": (12, 60)})).code is Code.WORSE_THAN_STABLE  # it goes on
    assert decide(changed(young, recent={"slow_250ms": (0, 3)})).code is Code.WORSE_THAN_STABLE  # too few to tell
    assert decide(changed(young, recent={"slow_250ms": (0, 60)}, forgotten=2)).code is Code.WORSE_THAN_STABLE
    old = changed(young, server_age_s=4000.0, recent={"slow_250ms": (0, 60)})
    assert decide(old).code is Code.WORSE_THAN_STABLE


def test_a_servers_first_while_is_no_proof_however_slow_it_is() -> None:
    cold = snapshot(
        judged=SLOW_WORSE, attempts_since_server=400, server_age_s=90.0, served_s=20.0, first={"slow_250ms": (4, 50)},
        step_started_at=snapshot().observed.now - 20.0,
    )  # fmt: skip
    held = decide(cold)
    assert (held.action, held.code) == (Action.HOLD, Code.CONFOUNDED) and "20 of 120 s" in held.reason
    assert "forget" not in held.facts
    over = decide(changed(cold, served_s=121.0, step_started_at=cold.observed.now - 121.0))
    assert over.code is Code.CONFOUNDED and over.facts["forget"] == "slow_250ms"  # judged afresh from here on
    again = changed(cold, served_s=135.0, step_started_at=cold.observed.now - 135.0, forgotten=1)
    assert decide(again).code is Code.WORSE_THAN_STABLE
    for well in ({}, {"slow_250ms": (0, 50)}):
        assert decide(changed(cold, first=well)).code is Code.WORSE_THAN_STABLE  # it was well at first
    without = replace(cold, policy=replace(cold.policy, document={**cold.policy.document, "cold_s": 0}))
    assert decide(without).code is Code.WORSE_THAN_STABLE  # no slowness is taken for warm-up
    worst = replace(SLOW_WORSE[1], bad_candidate=SLOW_WORSE[1].candidate)
    gross = changed(cold, judged=(SLOW_WORSE[0], worst))
    assert decide(gross).code is Code.CONFOUNDED  # twenty seconds of nothing but slowness may still be warm-up
    assert decide(changed(gross, served_s=119.9)).code is Code.CONFOUNDED
    late = changed(gross, served_s=120.0, step_started_at=cold.observed.now - 120.0, forgotten=1)
    assert decide(late).code is Code.WORSE_THAN_STABLE  # slowness that goes on is proven anew, and convicts


def test_a_server_that_was_as_slow_at_first_as_stable_always_is_was_not_cold() -> None:
    """Of stable's requests 2 % are slow, so that 3.5 % are tolerated: hardly any first attempts have no slow one among them."""
    slow = judged(1, bad_candidate=60, bad_stable=30, log_e_worse=30.0)
    new = snapshot(judged=(judged(0), slow), attempts_since_server=900, server_age_s=90.0, served_s=20.0)
    for few in ((1, 50), (17, 500)):
        assert decide(changed(new, first={"slow_250ms": few})).code is Code.WORSE_THAN_STABLE
    for many in ((2, 50), (18, 500)):
        assert decide(changed(new, first={"slow_250ms": many})).code is Code.CONFOUNDED


def test_without_a_stable_slow_at_first_is_over_the_objective() -> None:
    slow = judged(1, ALONE, bad_candidate=60, log_e_over=30.0)
    new = snapshot(
        policy=ALONE, has_stable=False, step_index=0, weight_bp=10_000, stable_servers=0, routed_stable=0, served_s=20.0,
        judged=(judged(0, ALONE), slow), attempts_since_server=900,
    )  # fmt: skip
    assert slow.limit == pytest.approx(0.035)
    assert decide(changed(new, first={"slow_250ms": (1, 50)})).facts["breach"] == Code.OBJECTIVE_BREACHED
    assert decide(changed(new, first={"slow_250ms": (2, 50)})).code is Code.CONFOUNDED


@pytest.mark.parametrize("excuse", [{"mix": OTHER_MIX}, {"attempts_since_server": 1}, {"hardware": "other hardware"}])
def test_no_excuse_helps_against_hard_facts(excuse: dict) -> None:
    for fact in (
        {"all_failing": 10, "all_failing_s": 1.0},
        {"is_candidate_gone": True},
        {"digest_mismatch": "Other bytes."},
    ):
        assert decide(snapshot(judged=SLOW_WORSE, **excuse, **fact)).action is Action.ROLL_BACK


def test_an_excuse_of_one_guard_does_not_cover_another() -> None:
    both = (judged(0, **WORSE), judged(1, **WORSE))
    assert decide(snapshot(judged=both, attempts_since_server=1)).code is Code.WORSE_THAN_STABLE


# --- guards that do not roll back -------------------------------------------------------------------------------------


def _with(index: int, **over: Any) -> tuple[Any, tuple[Judged, ...]]:
    guards = tuple(replace(one, **over) if i == index else one for i, one in enumerate(POLICY.guards))
    policy = replace(POLICY, guards=guards)
    return policy, tuple(judged(i, policy, **(WORSE if i == index else {})) for i in range(2))


def test_a_guard_that_is_not_critical_pauses() -> None:
    policy, found = _with(0, is_critical=False)
    done = decide(snapshot(policy=policy, judged=found))
    assert (done.action, done.code) == (Action.PAUSE, Code.WORSE_THAN_STABLE) and "not critical" in done.reason
    paused = decide(snapshot(policy=policy, judged=found, state=S.PAUSED))
    assert paused.action is Action.HOLD


def test_a_critical_guard_speaks_before_one_that_is_not() -> None:
    policy, found = _with(0, is_critical=False)
    both = (found[0], replace(found[1], log_e_worse=30.0))
    assert decide(snapshot(policy=policy, judged=both)).action is Action.ROLL_BACK


def test_a_dry_run_is_recorded_and_never_acts() -> None:
    policy, found = _with(0, is_dry_run=True)
    done = decide(snapshot(policy=policy, judged=found))
    assert done.action is Action.ADVANCE and done.facts["dry_run_breaches"] == ["errors"]


# --- budget -----------------------------------------------------------------------------------------------------------


def test_the_blast_radius_ends_the_rollout_before_more_users_pay() -> None:
    spent = decide(snapshot(policy=replace(POLICY, budget_bad=50), harm={"errors": (90.0, 64.0)}))
    assert (spent.action, spent.code) == (
        Action.ROLL_BACK,
        Code.BUDGET_SPENT,
    ) and "90 errors more than the policy tolerates" in spent.reason
    for harm in ((49.0, 0.0), (90.0, 400.0)):  # under the budget; not surely over it
        assert decide(snapshot(policy=replace(POLICY, budget_bad=50), harm={"errors": harm})).action is Action.ADVANCE
    assert (
        decide(snapshot(policy=replace(POLICY, budget_bad=None), harm={"errors": (1e6, 0.0)})).action is Action.ADVANCE
    )


# --- cannot tell ------------------------------------------------------------------------------------------------------


def test_after_the_blind_limit_it_is_said_loudly_and_the_weight_stays() -> None:
    blind = snapshot(problem="provider_down", problem_sentence="g1 does not answer", blind_s=119.0)
    assert decide(blind).code is Code.PROVIDER_DOWN
    loud = decide(changed(blind, blind_s=120.0))
    assert (loud.action, loud.code, loud.facts["because"]) == (Action.HOLD, Code.BLIND, "provider_down")
    asked = changed(blind, blind_s=500.0, policy=replace(POLICY, on_blind=OnUndecided.ROLL_BACK))
    assert (decide(asked).action, decide(asked).code) == (Action.ROLL_BACK, Code.BLIND)
    assert decide(changed(asked, state=S.PAUSED)).action is Action.HOLD


def test_lost_counts_hold_until_the_telemetry_was_whole_for_a_while() -> None:
    held = decide(snapshot(since_gap_s=3.0))
    assert (held.action, held.code) == (Action.HOLD, Code.NO_DATA)
    assert decide(snapshot(since_gap_s=31.0)).action is Action.ADVANCE
    assert decide(snapshot(since_gap_s=3.0, judged=ERRORS_WORSE)).code is Code.WORSE_THAN_STABLE


_WRONG = parse_policy({"steps": STEPS, "guards": [{"indicator": "errors"}, {"indicator": "wrong"}]}, OBJECTIVES).facing(
    has_stable=True
)


def test_a_guard_that_must_have_data_holds_when_its_source_is_silent() -> None:
    base = snapshot(policy=_WRONG, judged=(judged(0, _WRONG), judged(1, _WRONG)), silent_s={"wrong": 45.0})
    held = decide(base)
    assert (held.action, held.code) == (Action.HOLD, Code.NO_DATA) and "wrong answers" in held.reason
    told = decide(changed(base, source_problems={"wrong": "the prober has not written for 45 s"}))
    assert "the prober has not written for 45 s" in told.reason
    guards = (_WRONG.guards[0], replace(_WRONG.guards[1], must_have_data=False))
    lenient = replace(_WRONG, guards=guards)
    free = changed(base, policy=lenient, judged=(judged(0, lenient), judged(1, lenient, candidate=0, log_e_fine=0.0)))
    assert decide(free).action is Action.ADVANCE


# --- may it be opened now? --------------------------------------------------------------------------------------------

ALWAYS = FreezeWindow(why="Year end.")


def test_nothing_opens_in_a_freeze_window_and_a_breach_still_shuts() -> None:
    frozen = replace(POLICY, freeze_windows=(ALWAYS,))
    held = decide(snapshot(policy=frozen))
    assert (held.action, held.code, held.facts["held"]) == (
        Action.HOLD,
        Code.FROZEN,
        "advance",
    ) and "Year end" in held.reason
    ready = snapshot(state=S.PREPARING, policy=frozen, candidate_servers=1)
    assert decide(ready).code is Code.FROZEN
    assert decide(snapshot(policy=frozen, judged=ERRORS_WORSE)).action is Action.ROLL_BACK
    baking = snapshot(state=S.BAKING, weight_bp=9500, routed_candidate=950, routed_stable=50, policy=frozen)
    assert decide(baking).code is Code.FROZEN
    assert decide(changed(baking, is_promoting=True)).action is Action.PROMOTE  # the route says so already


@pytest.mark.parametrize(
    ("stage", "over"),
    [
        ("step 3", {}),
        ("bake", {"step_index": 2, "weight_bp": 5000, "routed_candidate": 1000, "routed_stable": 1000}),
        ("promote", {"state": S.BAKING, "weight_bp": 9500, "routed_candidate": 950, "routed_stable": 50}),
    ],
)
def test_a_stage_waits_for_its_approvals(stage: str, over: dict) -> None:
    policy = replace(POLICY, approvals={stage: 2})
    held = decide(snapshot(policy=policy, **over, approvals={stage: 1}))
    assert (held.action, held.code, held.facts["stage"]) == (Action.HOLD, Code.AWAITING_APPROVAL, stage)
    assert "1 more approval." in held.reason
    assert decide(snapshot(policy=policy, **over, approvals={stage: 2})).action is not Action.HOLD


def test_past_the_deadline_of_the_rollout_nothing_opens_by_itself() -> None:
    late = snapshot(total_s=POLICY.deadline_s)
    assert (decide(late).action, decide(late).code) == (Action.HOLD, Code.OVERDUE)
    back = changed(late, policy=replace(POLICY, on_undecided=OnUndecided.ROLL_BACK))
    assert (decide(back).action, decide(back).code) == (Action.ROLL_BACK, Code.OVERDUE)


def test_promote_now_skips_the_wait_and_no_check() -> None:
    now = snapshot(state=S.BAKING, weight_bp=9500, routed_candidate=950, routed_stable=50, now=901.0, promote_now=True)
    assert (decide(now).action, decide(now).code) == (Action.PROMOTE, Code.BY_HAND)
    assert decide(changed(now, judged=ERRORS_WORSE)).action is Action.ROLL_BACK
    assert decide(changed(now, problem="stale")).code is Code.PROVIDER_DOWN
    assert decide(changed(now, policy=replace(POLICY, approvals={"promote": 1}))).code is Code.AWAITING_APPROVAL


# --- shadowing --------------------------------------------------------------------------------------------------------

SHADOWED = parse_policy(
    {"preset": "careful", "guards": [{"indicator": "errors"}, {"indicator": "wrong"}]}, OBJECTIVES
).facing(has_stable=True)


def shadowing(**over: Any) -> Snapshot:
    found = (judged(0, SHADOWED, candidate=0, log_e_fine=0.0), judged(1, SHADOWED, candidate=300))
    facts = {
        "state": S.SHADOWING,
        "policy": SHADOWED,
        "step_index": -1,
        "weight_bp": 0,
        "judged": found,
        "now": 1100.0,
    }
    return snapshot(**{**facts, "routed_candidate": 0, "routed_stable": 900, "step_attempts": 0, **over})


def test_a_warm_candidate_is_shadowed_first_where_the_policy_says_so() -> None:
    done = decide(snapshot(state=S.PREPARING, policy=SHADOWED, candidate_servers=1))
    assert done.action is Action.SHADOW and "copies of 10 %" in done.reason


def test_shadowing_ends_by_comparisons_not_by_users_requests() -> None:
    done = decide(shadowing())
    assert (done.action, done.facts["to_index"]) == (Action.START, 0) and "300 comparisons" in done.reason
    few = shadowing(judged=(shadowing().evidence.judged[0], judged(1, SHADOWED, candidate=150)))
    assert decide(few).code is Code.NEED_MORE and "150 of 200 comparisons" in decide(few).reason


def test_wrong_answers_on_copies_roll_back_before_any_user_saw_one() -> None:
    wrong = shadowing(judged=(shadowing().evidence.judged[0], judged(1, SHADOWED, candidate=300, **WORSE)))
    done = decide(wrong)
    assert (done.action, done.code) == (Action.ROLL_BACK, Code.WORSE_THAN_STABLE) and "Wrong answers" in done.reason


def test_shadowing_without_a_prober_waits_and_says_why() -> None:
    held = decide(shadowing(silent_s={"wrong": 60.0}, source_problems={"wrong": "no prober runs"}))
    assert (held.action, held.code) == (Action.HOLD, Code.NO_DATA) and "no prober runs" in held.reason
