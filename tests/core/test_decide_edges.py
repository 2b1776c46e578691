"""What a rollout that is not broken does next: limits at their very edge, and what is said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.lifecycle import FINAL, RolloutState
from tests.core.test_confounders import SHADOWED, shadowing
from tests.core.test_decide import ALONE, POLICY, judged, snapshot
from tests.core.test_rollback_rules import HALF
from tests.support.worlds.snapshots import changed

S = RolloutState


def preparing(**over: Any) -> Any:
    before = {"state": S.PREPARING, "weight_bp": 0, "step_index": -1, "judged": (), "step_started_at": None}
    return snapshot(**{**before, "candidate_servers": 0, **over})


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (S.AWAITING_APPROVAL, Code.AWAITING_APPROVAL),
        (S.ROLLING_BACK, Code.ROLLING_BACK),
        (S.STUCK, Code.ROLLING_BACK),
        *[(state, Code.ENDED) for state in sorted(FINAL)],
    ],
)
def test_what_is_not_moving_is_held_for_its_own_reason(state: RolloutState, code: Code) -> None:
    done = decide(snapshot(state=state))
    assert (done.action, done.code) == (Action.HOLD, code)


def test_before_any_traffic_other_contents_or_too_long_a_wait_cancel() -> None:
    other = decide(preparing(digest_mismatch="The server runs other contents."))
    assert (other.action, other.code) == (Action.CANCEL, Code.DIGEST_MISMATCH)
    limit = POLICY.prepare_deadline_s
    late = decide(preparing(waited_s=limit, replica_problem="No node is free."))
    assert (late.action, late.code) == (Action.CANCEL, Code.SERVERS_GONE) and "No node is free." in late.reason
    assert decide(preparing(waited_s=limit - 0.1)).code is Code.PREPARING


def test_a_way_back_without_a_server_drops_no_candidate_that_is_ready() -> None:
    """The candidate may be the one release that could serve: past the deadline people are warned, and it stays."""
    limit = POLICY.prepare_deadline_s
    without = {"candidate_servers": 1, "stable_servers": 0, "replica_problem": "No node has room."}
    early, late = (decide(preparing(waited_s=waited_s, **without)) for waited_s in (limit - 0.1, limit))
    assert {(one.action, one.code) for one in (early, late)} == {(Action.HOLD, Code.STABLE_GONE)}
    assert "has no serving server; waiting for it. No node has room. A release manager may" in early.reason
    assert f"has had no serving server for {limit:.0f} s; waiting for it." in late.reason
    assert ("is_late" in early.facts, "is_late" in late.facts) == (False, True)
    assert late.reason.endswith("may give r2 all traffic at once: `sluicegate rollout promote`.")


def test_what_was_ready_all_night_is_waited_for_from_when_it_was_lost() -> None:
    """A freeze or a gate holds a rollout for longer than a candidate may be prepared; then an arm's only server begins anew."""
    limit, night = POLICY.prepare_deadline_s, {"waited_s": 32_400.0}
    stable = {"candidate_servers": 1, "stable_servers": 0, **night}
    blink = decide(preparing(stable_gone_s=0.0, **stable))
    assert (blink.action, blink.code) == (Action.HOLD, Code.STABLE_GONE)
    gone = decide(preparing(stable_gone_s=limit, **stable))
    assert gone.action is Action.HOLD and f"has had no serving server for {limit:.0f} s;" in gone.reason
    assert decide(preparing(gone_s=limit - 0.1, **night)).code is Code.PREPARING
    never = decide(preparing(gone_s=limit, **night))
    assert (never.code, never.reason) == (Code.SERVERS_GONE, f"r2 has not been ready for {limit:.0f} s.")


def test_what_was_missing_before_a_rollout_began_is_not_held_against_it() -> None:
    """It may have waited for an approval for days."""
    before = {"waited_s": 10.0, "gone_s": 1e6, "stable_gone_s": 1e6}
    assert decide(preparing(**before)).code is Code.PREPARING
    assert decide(preparing(**before, candidate_servers=1, stable_servers=0)).action is Action.HOLD


def test_the_first_traffic_is_the_first_steps() -> None:
    first = decide(preparing(candidate_servers=1))
    assert (first.action, first.facts) == (Action.START, {"to_index": 0}) and "5 % of the traffic" in first.reason
    alone = decide(preparing(candidate_servers=1, has_stable=False, policy=ALONE))
    assert (alone.action, alone.facts) == (Action.START, {"to_index": 0})
    shadowed = decide(shadowing())
    assert shadowed.reason.endswith("sending it 1 % of the traffic.")
    assert [step.weight_bp for step in SHADOWED.steps[:2]] != [100, 100]


def test_a_proof_is_said_of_what_was_proven() -> None:
    assert decide(snapshot()).reason.startswith(
        "r2 is as good as r1 on errors and slow requests (over 250 ms) over 500 attempts: advancing"
    )
    alone = {"policy": ALONE, "has_stable": False, "step_index": 0, "weight_bp": 10_000, "routed_stable": 0}
    done = decide(snapshot(**alone, judged=(judged(0, ALONE), judged(1, ALONE))))
    assert done.reason.startswith("r2 meets the objectives on errors and slow requests (over 250 ms) over 500 attempts")


def test_a_candidate_that_mends_is_said_to_be_over_the_objective_only_where_it_is() -> None:
    def reason(bad: int, log_e_better: float = 99.0, bad_stable: int = 900) -> str:
        one = judged(0, bad_candidate=bad, bad_stable=bad_stable, stable=1000, log_e_better=log_e_better)
        return decide(snapshot(judged=(replace(one, guard=HALF),))).reason

    over = "r2 is over the objective of errors, as r1 is, and proven better over 500 attempts"
    assert reason(251).startswith(over)
    for as_good in (reason(250), reason(251, log_e_better=0.0), reason(251, bad_stable=400)):
        assert as_good.startswith("r2 is as good as r1")


def test_shadowing_counts_the_comparisons_of_the_source_that_has_most() -> None:
    first, second = shadowing().evidence.judged
    two = changed(shadowing(), judged=(first, replace(second, candidate=300), replace(second, candidate=150)))
    assert decide(two).action is Action.START and "300 comparisons" in decide(two).reason
    assert "0 of 200 comparisons made" in decide(changed(shadowing(), judged=(first,))).reason


def test_a_step_that_has_not_begun_waits_for_that_alone() -> None:
    waiting = decide(snapshot(step_started_at=None))
    assert (waiting.code, waiting.reason) == (Code.NEED_MORE, "Holding at 25 %: the step has not begun.")


def test_a_step_ends_exactly_at_its_proof_its_attempts_and_its_time() -> None:
    bar = POLICY.bar_fine
    exactly = {"judged": (judged(0, log_e_fine=bar), judged(1)), "step_attempts": 100, "now": 960.0}
    assert decide(snapshot(**exactly)).action is Action.ADVANCE
    less = {"judged": (judged(0, log_e_fine=math.nextafter(bar, 0)), judged(1)), "step_attempts": 99, "now": 959.9}
    for name, value in less.items():
        assert decide(snapshot(**{**exactly, name: value})).code is Code.NEED_MORE


@pytest.mark.parametrize(
    ("must_have_data", "candidate", "waits"), [(True, 0, True), (True, 5, True), (False, 1, True), (False, 0, False)]
)
def test_proof_is_waited_for_where_there_is_data_or_must_be(must_have_data: bool, candidate: int, waits: bool) -> None:
    guards = (replace(POLICY.guards[0], must_have_data=must_have_data), POLICY.guards[1])
    unproven = replace(judged(0, candidate=candidate, log_e_fine=0.0), guard=guards[0])
    done = decide(snapshot(policy=replace(POLICY, guards=guards), judged=(unproven, judged(1))))
    assert done.action is (Action.HOLD if waits else Action.ADVANCE)


@pytest.mark.parametrize(("stable", "candidate", "waits"), [(0, 0, False), (40, 0, True), (0, 5, True)])
def test_proof_of_streams_is_waited_for_if_somebody_asks_for_streams(stable: int, candidate: int, waits: bool) -> None:
    guards = (replace(POLICY.guards[0], indicator="first_token", threshold_us=500_000), POLICY.guards[1])
    unproven = replace(judged(0, candidate=candidate, log_e_fine=0.0), stable=stable, guard=guards[0])
    done = decide(snapshot(policy=replace(POLICY, guards=guards), judged=(unproven, judged(1))))
    assert done.action is (Action.HOLD if waits else Action.ADVANCE)


@pytest.mark.parametrize(("to_go", "words"), [(1, "about 1 more sample."), (2, "about 2 more samples.")])
def test_one_sample_is_said_in_the_singular(to_go: int, words: str) -> None:
    assert words in decide(snapshot(judged=(judged(0, log_e_fine=0.0, to_go=to_go), judged(1)))).reason
