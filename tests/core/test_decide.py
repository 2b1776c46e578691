"""`decide` is total, never advances on ignorance, and lets a breach beat everything."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import OnUndecided
from rollouts.core.policy_schema import parse_policy
from rollouts.core.rules.confounders import is_split_off
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.snapshot import Snapshot
from tests.support.worlds.snapshots import changed, make_snapshot

S = RolloutState
OBJECTIVES = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.02}}
STEPS = [{"weight_pct": weight, "min_s": 60, "min_samples": 100, "deadline_s": 600} for weight in (5, 25, 50)]
POLICY = parse_policy(
    {"steps": STEPS, "bake": {"min_s": 100, "min_samples": 100, "deadline_s": 900}}, OBJECTIVES
).facing(has_stable=True)
ALONE = parse_policy({"steps": STEPS}, OBJECTIVES).facing(has_stable=False)
FINE = 99.0


def judged(index: int = 0, policy: Any = POLICY, **over: Any) -> Judged:
    numbers: dict[str, Any] = {
        "bad_candidate": 0, "candidate": 500, "bad_stable": 2, "stable": 1500, "phi": 1.0, "log_e_worse": -2.0, "log_e_fine": FINE,
        "log_e_over": -2.0, "log_e_stable_over": -2.0, "to_go": 0, **over,
    }  # fmt: skip
    return Judged(policy.guards[index], **numbers)


def snapshot(**over: Any) -> Snapshot:
    """A healthy rollout at 25 %, ready to advance."""
    numbers: dict[str, Any] = {
        "state": S.SHIFTING, "policy": POLICY, "now": 1000.0, "candidate_name": "r2", "stable_name": "r1", "step_index": 1,
        "weight_bp": 2500, "step_started_at": 900.0, "judged": (judged(0), judged(1)), "step_attempts": 500,
        "routed_candidate": 500, "routed_stable": 1500, "candidate_servers": 1, "stable_servers": 1, **over,
    }  # fmt: skip
    for arm in ("candidate", "stable"):  # answers come as steadily as requests
        numbers.setdefault(f"settled_{arm}", numbers[f"routed_{arm}"])
    return make_snapshot(**numbers)


def test_what_callers_alone_decide_holds_no_rollout() -> None:
    """Any caller can send what the model refuses: the guard takes traffic back, and nothing waits for its proof."""
    refused = next(index for index, guard in enumerate(POLICY.guards) if guard.indicator == "refused")
    unproven = judged(refused, bad_candidate=100, bad_stable=310, log_e_fine=0.2, to_go=4000)
    step = decide(snapshot(judged=(judged(0), judged(1), unproven)))
    assert step.action is Action.ADVANCE and "refused" not in step.reason  # it states what was proven
    suspect = replace(unproven, log_e_worse=3.0)
    held = decide(snapshot(judged=(judged(0), judged(1), suspect)))
    assert held.code is Code.NEED_MORE and "refused requests look worse" in held.reason
    for log_e, code in ((0.2, Code.NEED_MORE), (0.05, Code.PROVEN)):  # nothing else holds a candidate that refuses more
        leans = replace(unproven, log_e_worse=log_e)
        assert decide(snapshot(judged=(judged(0), judged(1), leans))).code is code
    worse = replace(unproven, bad_candidate=200, log_e_worse=99.0)
    assert decide(snapshot(judged=(judged(0), judged(1), worse))).action is Action.ROLL_BACK


def test_a_proven_step_advances_and_the_last_one_bakes_and_the_bake_promotes() -> None:
    step = decide(snapshot())
    assert (step.action, step.code) == (Action.ADVANCE, Code.PROVEN) and "50 %" in step.reason
    assert (
        decide(snapshot(step_index=2, weight_bp=5000, routed_candidate=1000, routed_stable=1000)).action is Action.BAKE
    )
    bake = snapshot(state=S.BAKING, weight_bp=9500, routed_candidate=950, routed_stable=50)
    assert decide(bake).action is Action.PROMOTE
    assert decide(changed(bake, now=950.0)).code is Code.NEED_MORE


def test_a_hold_says_in_numbers_what_is_missing() -> None:
    held = decide(snapshot(now=940.0, judged=(judged(0), judged(1, log_e_fine=1.0, to_go=212)), step_attempts=88))
    assert held.action is Action.HOLD and held.code is Code.NEED_MORE
    assert held.reason == (
        "Holding at 25 %: slow requests (over 250 ms) need about 212 more samples (88 attempts seen); 40 s of 60 s minimum passed."
    )


@pytest.mark.parametrize(
    ("to_go", "seen", "wait"),
    [
        ((43, None), 0, "0 of 100 attempts seen"),
        ((143, None), 0, "errors need about 143 more samples (0 attempts seen)"),
        ((43, 150), 0, "slow requests (over 250 ms) need about 150 more samples (0 attempts seen)"),
        ((43, 60), 20, "20 of 100 attempts seen"),
        ((43, 60), 100, "slow requests (over 250 ms) need about 60 more samples"),
    ],
)
def test_a_hold_states_one_target_for_one_wait(to_go: tuple[int, int | None], seen: int, wait: str) -> None:
    judgements = [
        judged(index, log_e_fine=1.0, to_go=left) if left is not None else judged(index)
        for index, left in enumerate(to_go)
    ]
    held = decide(snapshot(judged=tuple(judgements), step_attempts=seen))
    assert held.reason == f"Holding at 25 %: {wait}."


def test_a_proof_without_a_sample_claims_no_comparison() -> None:
    guards = tuple(replace(one, must_have_data=False) for one in POLICY.guards)
    empty = tuple(replace(judged(index, candidate=0), guard=guard) for index, guard in enumerate(guards))
    proven = decide(snapshot(policy=replace(POLICY, guards=guards), judged=empty))
    assert proven.reason.startswith("No guard has a sample of r2 over 500 attempts, and none must have data: advancing")


BREACHES = [
    ({"judged": (judged(0, bad_candidate=50, log_e_worse=30.0), judged(1))}, Code.WORSE_THAN_STABLE),
    ({"judged": (judged(0), judged(1, bad_candidate=90, log_e_over=30.0, log_e_worse=3.0))}, Code.OBJECTIVE_BREACHED),
    ({"all_failing": 10, "all_failing_s": 1.0}, Code.ALL_FAILING),
    ({"is_candidate_gone": True}, Code.SERVERS_GONE),
    ({"digest_mismatch": "The server runs other contents."}, Code.DIGEST_MISMATCH),
]
TROUBLES: list[dict[str, Any]] = [
    {},
    {"problem": "provider_down"},
    {"problem": "stale"},
    {"is_acknowledged": False},
    {"quiet_s": 999.0},
    {"routed_candidate": 1900},
    {"step_started_at": None},
    {"now": 10_000.0},
    {"is_promoting": True},
]


@pytest.mark.parametrize(("breach", "code"), BREACHES)
@pytest.mark.parametrize("state", sorted(LIVE - {S.SECOND_LOOK}))
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_breach_beats_everything_in_every_live_state(
    breach: dict, code: Code, state: RolloutState, trouble: dict
) -> None:
    done = decide(snapshot(**{**trouble, **breach}, state=state))
    assert (done.action, done.code) == (Action.ROLL_BACK, code)
    assert "Rolling back to r1." in done.reason


@pytest.mark.parametrize(("breach", "code"), [b for b in BREACHES if b[1] is not Code.WORSE_THAN_STABLE])
def test_a_breach_without_a_rollback_target_pauses_and_says_so(breach: dict, code: Code) -> None:
    if "judged" in breach:
        breach = {"judged": (judged(0, ALONE), judged(1, ALONE, bad_candidate=90, log_e_over=30.0))}
    alone = snapshot(
        policy=ALONE, has_stable=False, step_index=0, weight_bp=10_000, stable_servers=0, routed_stable=0, **breach
    )
    done = decide(alone)
    assert (done.action, done.code) == (Action.PAUSE, Code.NO_ROLLBACK_TARGET)
    assert "no earlier release" in done.reason and done.facts["breach"] == code
    paused = decide(changed(alone, state=S.PAUSED))
    assert (paused.action, paused.code) == (Action.HOLD, Code.NO_ROLLBACK_TARGET)


def test_what_breaks_while_it_is_promoted_is_rolled_back_in() -> None:
    """Stable gets nothing any more, and second attempts meet the candidate again: there is nobody to compare with."""
    row = {"all_failing": 1800, "all_failing_s": 90.0, "own_failing": 0, "is_stable_better": False}
    promoting = {"state": S.BAKING, "is_promoting": True}
    assert decide(snapshot(**row)).code is Code.BOTH_ARMS_BAD
    done = decide(snapshot(**row, **promoting))
    assert (done.action, done.code) == (Action.ROLL_BACK, Code.ALL_FAILING)
    over = {"judged": (judged(0, bad_candidate=90, bad_stable=6, log_e_over=99.0, log_e_worse=2.0), judged(1))}
    assert decide(snapshot(**over)).code is Code.BOTH_ARMS_BAD
    assert decide(snapshot(**over, **promoting)).code is Code.OBJECTIVE_BREACHED


def test_what_refuses_users_is_held_and_rolled_back_in_once_that_has_cost_the_budget() -> None:
    """The budget is 200 users more than stable would have refused, and what chance may add."""
    held = decide(snapshot(shed_candidate=40))
    assert (held.action, held.code) == (Action.HOLD, Code.NEEDS_REPLICAS)
    assert decide(snapshot(shed_candidate=240)).code is Code.NEEDS_REPLICAS  # that may be chance
    done = decide(snapshot(shed_candidate=300))
    assert (done.action, done.code) == (
        Action.ROLL_BACK,
        Code.BUDGET_SPENT,
    ) and "had no room for 300 of 500" in done.reason
    assert decide(snapshot(shed_candidate=300, shed_stable=900)).action is not Action.ROLL_BACK  # both are overrun
    assert decide(snapshot(shed_candidate=300, has_stable=False)).action is not Action.ROLL_BACK


IGNORANT = [
    ({"problem": "provider_down", "problem_sentence": "gateway g1 does not answer"}, Code.PROVIDER_DOWN),
    ({"problem": "stale", "problem_sentence": "the counters are 40 s old"}, Code.PROVIDER_DOWN),
    ({"is_acknowledged": False, "ack_error": "g1 refused it"}, Code.NOT_ACKNOWLEDGED),
    ({"quiet_s": 31.0}, Code.NO_DATA),
    ({"routed_candidate": 1200, "routed_stable": 800}, Code.NOT_ACKNOWLEDGED),
    ({"stable_servers": 0, "is_candidate_gone": True}, Code.BOTH_ARMS_BAD),
    ({"all_failing": 50, "all_failing_s": 2.0, "is_stable_better": False}, Code.BOTH_ARMS_BAD),
    (
        {
            "all_failing": 12,
            "all_failing_s": 2.0,
            "judged": (judged(0, bad_stable=700, is_stable_over=True), judged(1)),
        },
        Code.BOTH_ARMS_BAD,
    ),
    (
        {"judged": (judged(0, bad_candidate=200, bad_stable=600, log_e_over=99.0, is_stable_over=True), judged(1))},
        Code.BOTH_ARMS_BAD,
    ),
    (
        {"judged": (judged(0, bad_candidate=90, bad_stable=6, log_e_over=99.0, log_e_worse=2.0), judged(1))},
        Code.BOTH_ARMS_BAD,
    ),
    ({"judged": (judged(0, bad_candidate=40, bad_stable=600, is_stable_over=True), judged(1))}, Code.BOTH_ARMS_BAD),
]


@pytest.mark.parametrize(("ignorance", "code"), IGNORANT)
@pytest.mark.parametrize("state", [S.SHIFTING, S.BAKING])
def test_cannot_tell_holds_with_its_own_code(ignorance: dict, code: Code, state: RolloutState) -> None:
    over = {"weight_bp": 9500, "routed_candidate": 1900, "routed_stable": 100} if state is S.BAKING else {}
    done = decide(snapshot(**{**over, **ignorance}, state=state))
    assert (done.action, done.code) == (Action.HOLD, code)
    assert done.reason.endswith(".")


@pytest.mark.parametrize(("ignorance", "code"), IGNORANT)
def test_past_the_deadline_the_policy_speaks(ignorance: dict, code: Code) -> None:
    late = snapshot(**ignorance, now=9000.0)
    held = decide(late)
    assert held.action is Action.HOLD and "deadline" in held.reason
    strict = replace(
        late, policy=parse_policy({"steps": STEPS, "on_undecided": "roll_back"}, OBJECTIVES).facing(has_stable=True)
    )
    wanted = Action.HOLD if code is Code.BOTH_ARMS_BAD else Action.ROLL_BACK  # both bad: never the release's fault
    assert decide(strict).action is wanted


def test_undecided_at_the_deadline_holds_by_default_and_still_advances_on_later_proof() -> None:
    late = snapshot(now=9000.0, judged=(judged(0, log_e_fine=0.5, to_go=None), judged(1)))
    assert decide(late).code is Code.NEED_MORE and decide(late).facts["is_late"] and decide(late).action is Action.HOLD
    assert decide(changed(late, judged=(judged(0), judged(1)))).action is Action.ADVANCE


def test_a_candidate_that_mends_a_burning_stable_may_advance() -> None:
    mending = snapshot(judged=(judged(0, bad_candidate=0, bad_stable=900, is_stable_over=True), judged(1)))
    assert decide(mending).action is Action.ADVANCE


def test_nothing_opens_while_the_candidate_looks_worse_ten_to_one() -> None:
    for state in (S.SHIFTING, S.BAKING):
        over = {"weight_bp": 9500, "routed_candidate": 1900, "routed_stable": 100} if state is S.BAKING else {}
        suspect = snapshot(judged=(judged(0, log_e_worse=2.4), judged(1)), state=state, **over)
        assert decide(suspect).code is Code.NEED_MORE
        assert "errors look worse than r1's, and that is not ruled out yet" in decide(suspect).reason
        assert decide(changed(suspect, judged=(judged(0, log_e_worse=2.2), judged(1)))).code is Code.PROVEN


def test_a_hold_states_that_failures_come_in_clumps() -> None:
    short = judged(0, log_e_fine=0.0, to_go=900, phi=12.3)
    assert (
        "errors need about 900 more samples (they come in clumps: 12 count as one)"
        in decide(snapshot(judged=(short, judged(1)))).reason
    )


def test_an_objective_is_not_held_against_the_candidate_while_stable_is_unknown() -> None:
    few = snapshot(
        judged=(
            judged(0, bad_candidate=30, bad_stable=0, stable=3, log_e_over=99.0, log_e_fine=0.0, to_go=None),
            judged(1),
        )
    )
    assert decide(few).action is Action.HOLD


def test_preparing_waits_starts_or_gives_up() -> None:
    waiting = snapshot(
        state=S.PREPARING, step_index=-1, weight_bp=0, judged=(), step_started_at=None, candidate_servers=0
    )
    assert decide(waiting).code is Code.PREPARING
    assert decide(changed(waiting, candidate_servers=1)).action is Action.START
    assert decide(changed(waiting, candidate_servers=1, stable_servers=0)).code is Code.STABLE_GONE
    assert decide(changed(waiting, waited_s=1e6)).action is Action.CANCEL
    assert decide(changed(waiting, candidate_servers=1, report_problem="No report.")).code is Code.REPORT_NOT_VALID
    first = decide(changed(waiting, candidate_servers=1, has_stable=False, policy=ALONE))
    assert "absolute objectives only" in first.reason and "100 %" in first.reason


def test_the_split_is_judged_with_room_for_chance() -> None:
    assert not is_split_off(snapshot(routed_candidate=520, routed_stable=1480))
    assert is_split_off(snapshot(routed_candidate=800, routed_stable=1200))
    assert not is_split_off(snapshot(routed_candidate=80, routed_stable=20))  # too few to tell


def test_longer_answers_that_are_on_their_way_are_no_other_split() -> None:
    early = {"routed_candidate": 0, "routed_stable": 1500}
    assert not is_split_off(snapshot(**early, settled_candidate=0, settled_stable=0))
    assert is_split_off(snapshot(**early, settled_candidate=0, settled_stable=200))


numbers = st.floats(-50, 50, allow_nan=False)
counts = st.integers(0, 5000)


@st.composite
def snapshots(draw: Any) -> Snapshot:
    has_stable = draw(st.booleans())
    policy = POLICY if has_stable else ALONE
    guards = tuple(
        judged(
            i,
            policy,
            bad_candidate=draw(counts),
            candidate=draw(counts),
            bad_stable=draw(counts),
            stable=draw(counts),
            log_e_worse=draw(numbers),
            log_e_fine=draw(numbers),
            log_e_over=draw(numbers),
            log_e_stable_over=draw(numbers),
            to_go=draw(st.none() | counts),
        )
        for i in range(2)
    )
    return make_snapshot(
        state=draw(st.sampled_from(sorted(S))),
        policy=policy,
        now=draw(st.floats(0, 5000)),
        has_stable=has_stable,
        step_index=draw(st.integers(-1, 4)),
        paused_in=draw(st.sampled_from([S.SHIFTING, S.BAKING])),
        waited_s=draw(st.floats(0, 5000)),
        weight_bp=draw(st.integers(0, 10_000)),
        is_acknowledged=draw(st.booleans()),
        unacknowledged_s=draw(st.floats(0, 100)),
        step_started_at=draw(st.none() | st.floats(0, 1000)),
        judged=guards,
        step_attempts=draw(counts),
        routed_candidate=draw(counts),
        routed_stable=draw(counts),
        settled_candidate=draw(counts),
        settled_stable=draw(counts),
        given_up_candidate=draw(counts),
        given_up_stable=draw(counts),
        all_failing=draw(st.integers(0, 60)),
        all_failing_s=draw(st.floats(0, 5)),
        is_stable_better=draw(st.booleans()),
        quiet_s=draw(st.floats(0, 100)),
        candidate_servers=draw(st.sampled_from([None, 0, 1, 2])),
        is_candidate_gone=draw(st.booleans()),
        stable_servers=draw(st.sampled_from([None, 0, 1])),
        digest_mismatch=draw(st.sampled_from(["", "Other contents."])),
        problem=draw(st.sampled_from(["", "provider_down", "stale"])),
        is_promoting=draw(st.booleans()),
    )


FORWARD = {Action.ADVANCE, Action.BAKE, Action.PROMOTE}


@given(snapshots())
@settings(max_examples=600)
@pytest.mark.slow
def test_decide_is_total_and_sound(s: Snapshot) -> None:
    done = decide(s)
    assert done.reason.strip() and done.reason[-1] in ".!"
    assert decide(s) == done
    if done.action in FORWARD:
        assert s.desired.state in {S.SHIFTING, S.BAKING}
        assert (
            not s.observed.problem
            and s.observed.is_acknowledged
            and not s.observed.digest_mismatch
            and not s.of(CandidateServers).is_gone(s.observed)
        )
        assert s.desired.is_promoting or (
            s.observed.step_started_at is not None and all(j.log_e_fine >= s.policy.bar_fine for j in s.evidence.judged)
        )
        assert s.desired.is_promoting or s.evidence.quiet_s < s.policy.no_data_s or s.desired.weight_bp == 0
        assert s.desired.is_promoting or (
            s.evidence.step_attempts >= s.stage.min_samples and s.elapsed_s >= s.stage.min_s
        )
        assert not (s.identity.has_stable and any(j.log_e_worse >= s.policy.bar_worse for j in s.evidence.judged))
    if done.action in {Action.START, Action.SHADOW}:
        assert not s.observed.problem
    if done.action is Action.ROLL_BACK:
        assert s.identity.has_stable and s.desired.state in LIVE
    if s.desired.state not in LIVE | {S.PREPARING}:
        assert done.action is Action.HOLD
    if s.desired.state in LIVE and s.identity.has_stable and s.observed.digest_mismatch:
        assert done.action is Action.ROLL_BACK
    if s.desired.state is S.PAUSED:
        assert done.action in {Action.HOLD, Action.ROLL_BACK}


def test_no_traffic_is_opened_while_nobody_could_see_what_it_does() -> None:
    ready = snapshot(
        state=S.PREPARING, step_index=-1, weight_bp=0, judged=(), step_started_at=None,
        candidate_servers=1, stable_servers=1,
    )  # fmt: skip
    assert decide(ready).action is Action.START
    for problem in ("provider_down", "stale"):
        blind = decide(changed(ready, problem=problem, problem_sentence="gateway g does not tell its counters"))
        assert (blind.action, blind.code) == (Action.HOLD, Code.PROVIDER_DOWN) and "gateway g" in blind.reason


def test_every_code_can_be_reached_or_is_named_elsewhere() -> None:
    """Codes that only the engine's other paths use are few and known."""
    reached = {decide(snapshot(**{**t, **b})).code for (b, _), t in itertools.product(BREACHES + IGNORANT, TROUBLES)}
    assert {Code.WORSE_THAN_STABLE, Code.ALL_FAILING, Code.BOTH_ARMS_BAD, Code.NOT_ACKNOWLEDGED} <= reached
    assert math.isfinite(snapshot().policy.bar_worse)


def test_what_both_arms_share_does_not_hide_what_the_candidate_alone_breaks() -> None:
    shared = judged(0, bad_candidate=60, bad_stable=180, log_e_over=30.0)
    alone = judged(1, bad_candidate=90, log_e_over=30.0, log_e_worse=3.0)
    assert decide(snapshot(judged=(shared, judged(1)))).code is Code.BOTH_ARMS_BAD
    done = decide(snapshot(judged=(shared, alone)))
    assert (done.action, done.code) == (Action.ROLL_BACK, Code.OBJECTIVE_BREACHED)


@pytest.mark.parametrize("state", [S.SHIFTING, S.BAKING])
def test_nothing_advances_without_a_rollback_target_that_serves(state: RolloutState) -> None:
    done = decide(snapshot(state=state, stable_servers=0, routed_stable=1500))
    assert (done.action, done.code) == (Action.HOLD, Code.STABLE_GONE)
    late = decide(snapshot(state=state, stable_servers=0, now=10_000.0))
    assert late.action is Action.HOLD  # not back to a release that serves nobody either


def test_a_weight_that_is_never_acknowledged_has_a_deadline_too() -> None:
    policy = replace(POLICY, on_undecided=OnUndecided.ROLL_BACK)
    waiting = snapshot(policy=policy, is_acknowledged=False, step_started_at=None, unacknowledged_s=30.0)
    assert decide(waiting).action is Action.HOLD
    done = decide(changed(waiting, unacknowledged_s=10_000.0))
    assert (done.action, done.code) == (Action.ROLL_BACK, Code.OVERDUE)
