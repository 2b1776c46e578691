"""No hold is without an end: each ends by itself, or a person with the right role has a verb that ends it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.instead import SHUTTING, WORDS, instead_of
from rollouts.core.lifecycle import ACTIVE, LIVE, RolloutState
from rollouts.core.request_mix import Mix
from tests.core.test_decide import ALONE, POLICY, judged, snapshot

S = RolloutState
PAGE = (Path(__file__).parents[2] / "docs/rollouts.md").read_text()
#: Of a rollout that is over: nothing is held.
OVER = {Code.ENDED}
#: The verbs of people, as the page names them.
VERBS = {
    "approve", "reject", "cancel", "abort", "resume", "advance", "promote", "start", "POST …/replicas", "POST /gateways/NAME/remove",
}  # fmt: skip


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table after this text."""
    table = PAGE.partition(heading)[2].partition("\n| ")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in table.splitlines()[2:]]


def test_each_reason_to_hold_is_in_the_table_of_holds_with_a_verb_that_ends_it() -> None:
    told = {code: row for row in rows_of("**Who ends each hold.**") for code in re.findall(r"`(\w+)`", row[0])}
    holds = {
        code
        for codes, action, _ in rows_of("## Reason codes")
        if "hold" in action
        for code in re.findall(r"`(\w+)`", codes)
    }
    assert len(holds) > 15
    assert holds - {code.value for code in OVER} - set(told) == set()
    for code, (_, _, by_person) in told.items():
        assert set(re.findall(r"`([^`]+)`", by_person)) & VERBS, code


#: What evidence a rollout may lack for good: its source is gone, nobody asks, counts were lost, time or proof are missing.
MISSING: list[tuple[dict[str, Any], Code]] = [
    ({"quiet_s": 999.0}, Code.NO_DATA),
    ({"since_gap_s": 1.0}, Code.NO_DATA),
    ({"now": 950.0}, Code.NEED_MORE),
    ({"judged": (judged(0, log_e_fine=0.0), judged(1))}, Code.NEED_MORE),
    ({"judged": (judged(0, log_e_fine=0.0), judged(1)), "now": 9e9}, Code.NEED_MORE),
    ({"total_s": 1e9}, Code.OVERDUE),
]
#: What speaks against it, or keeps anybody from seeing what happens.
AGAINST: list[tuple[dict[str, Any], Code]] = [
    ({"problem": "provider_down"}, Code.PROVIDER_DOWN),
    ({"problem": "stale"}, Code.PROVIDER_DOWN),
    ({"is_acknowledged": False}, Code.NOT_ACKNOWLEDGED),
    ({"routed_candidate": 400, "routed_stable": 400}, Code.NOT_ACKNOWLEDGED),
    ({"shed_candidate": 60}, Code.NEEDS_REPLICAS),
    ({"all_failing": 99, "all_failing_s": 1.0, "is_stable_better": False}, Code.BOTH_ARMS_BAD),
]
BAKING = {"state": S.BAKING, "weight_bp": 9500, "routed_candidate": 950, "routed_stable": 50}


@pytest.mark.parametrize(("over", "code"), MISSING)
def test_a_promotion_by_hand_waits_for_no_evidence_and_states_that(over: dict[str, Any], code: Code) -> None:
    held = decide(snapshot(**{**BAKING, **over}))
    assert (held.action, held.code) == (Action.HOLD, code)
    done = decide(snapshot(**{**BAKING, **over}, promote_now=True))
    assert (done.action, done.code) == (Action.PROMOTE, Code.BY_HAND)
    if code is Code.NEED_MORE:
        assert (
            done.reason.startswith("Promoting r2 by hand: no evidence was waited for (")
            and done.facts["not_waited_for"]
        )


def test_a_promotion_by_hand_of_what_no_request_reached_states_how_little_was_seen() -> None:
    nothing = (judged(0, candidate=0, log_e_fine=0.0), judged(1, candidate=0, log_e_fine=0.0))
    done = decide(snapshot(**BAKING, promote_now=True, quiet_s=43.0, step_attempts=0, judged=nothing))
    assert done.action is Action.PROMOTE and "0 of 100 attempts seen" in done.reason
    last = decide(snapshot(**BAKING, promote_now=True, is_promoting=True))
    assert last.reason == "All traffic went to r2, promoted by hand: no evidence was waited for."
    proven = decide(snapshot(**BAKING, promote_now=True))
    assert proven.reason == "Promoting r2 by hand: every guard is proven."
    assert decide(snapshot(**BAKING, is_promoting=True)).reason == "All traffic went to r2."


@pytest.mark.parametrize(("over", "code"), AGAINST)
def test_a_promotion_by_hand_that_waits_says_so(over: dict[str, Any], code: Code) -> None:
    held = decide(snapshot(**{**BAKING, **over}, promote_now=True))
    assert (held.action, held.code) == (Action.HOLD, code)
    assert held.reason.startswith("The promotion by hand waits. ")


@pytest.mark.parametrize("over", [one for one, _ in MISSING + AGAINST] + [{"mix": Mix()}, {"is_candidate_gone": True}])
@pytest.mark.parametrize("state", [*sorted(LIVE), S.PREPARING])
def test_no_sentence_of_a_first_release_names_another_arm(state: RolloutState, over: dict[str, Any]) -> None:
    alone = {
        "policy": ALONE, "has_stable": False, "stable_name": "nothing", "step_index": 0, "weight_bp": 10_000, "routed_candidate": 900,
        "routed_stable": 0, "stable_servers": 0, "judged": (judged(0, ALONE), judged(1, ALONE)), "state": state,
    }  # fmt: skip
    reason = decide(snapshot(**{**alone, **{name: value for name, value in over.items() if name != "judged"}})).reason
    assert "nothing" not in reason.replace("nothing is opened", "") and "stable" not in reason


@pytest.mark.parametrize("state", RolloutState)
@pytest.mark.parametrize("word", WORDS)
def test_a_verb_that_does_not_fit_names_the_one_that_does(word: str, state: RolloutState) -> None:
    facts = {"rollout": 7, "model": "license", "environment": "staging", "candidate": "r2"}
    for stable in ("r1", ""):
        said = instead_of(word, state, stable=stable, **facts)
        assert (said.endswith(".") and "{" not in said and said[0].isupper()) or said.startswith(("`", "r2"))
        if state in ACTIVE:
            assert "`sluicegate " in said
    if state is S.PROMOTED and word in SHUTTING:
        assert "`sluicegate rollback license --environment staging`" in instead_of(word, state, stable="r1", **facts)
        assert "rollout start license/RELEASE" in instead_of(word, state, stable="", **facts)


def test_a_candidate_that_never_loaded_keeps_the_cause_in_every_sentence_and_in_the_last() -> None:
    failed = "Its last try failed: load_failed: license expired"
    waiting = snapshot(state=S.PREPARING, candidate_servers=0, load_failure=failed, waited_s=30.0)
    at_once, again = (
        decide(replace(waiting, observed=replace(waiting.observed, replica_problem=failed))),
        decide(waiting),
    )
    assert at_once.reason == again.reason == f"Waiting for r2 to be loaded and warm. {failed}"
    late = decide(replace(waiting, observed=replace(waiting.observed, waited_s=POLICY.prepare_deadline_s)))
    assert (late.action, late.reason) == (
        Action.CANCEL,
        f"r2 has not been ready for {POLICY.prepare_deadline_s:.0f} s. {failed}",
    )
