"""What verdicts mean to an environment: gates that advise there hold nothing up, and every other one does."""

from __future__ import annotations

from typing import Any

import pytest

from validators.core.entry import advisory_anywhere, advisory_in, entry, policy_in
from validators.core.policy import parse_policy
from validators.core.verdict import Verdict

P, F, U = Verdict.PASSED, Verdict.FAILED, Verdict.UNDECIDED
POLICY = parse_policy({"environments": {"beta": {"advisory": ["load"], "max_age_days": 90}, "qa": {}}}).document


def verdict(environment: str | None, policy: dict[str, Any] = POLICY, **verdicts: Verdict) -> Verdict:
    return entry(verdicts.items(), policy, environment)[0]


def test_a_gate_that_advises_holds_nothing_up_there_and_does_elsewhere() -> None:
    assert verdict("beta", contract=P, load=F) is P
    assert verdict("production", contract=P, load=F) is F
    assert verdict("qa", contract=P, load=F) is F
    assert verdict(None, contract=P, load=F) is F
    assert verdict("beta", contract=F, load=P) is F


def test_where_only_advice_was_given_nothing_is_proven() -> None:
    assert verdict("beta", load=P) is U


def test_an_undecided_load_is_let_go_where_the_policy_says_so() -> None:
    allows = parse_policy({"load": {"undecided": "allow"}}).document
    assert verdict(None, allows, contract=P, load=U) is P and verdict(None, contract=P, load=U) is U


def test_policies_from_before_have_no_advice() -> None:
    assert advisory_in({}, "beta") == advisory_anywhere({}) == frozenset()
    assert advisory_anywhere(POLICY) == {"load"}


def test_an_environment_may_state_another_age() -> None:
    assert policy_in(POLICY, "beta")["evidence"]["max_age_days"] == 90
    assert policy_in(POLICY, "qa") == policy_in(POLICY, None) == policy_in(POLICY, "production") == POLICY


def test_without_an_environment_the_strictest_age_counts() -> None:
    def age(usual: float | None, *of: float | None) -> float | None:
        environments = {f"e{i}": {"max_age_days": own} for i, own in enumerate(of)}
        document = parse_policy({"environments": environments, "evidence": {"max_age_days": usual}}).document
        found: float | None = policy_in(document, None)["evidence"]["max_age_days"]
        return found

    assert (age(30, 90, 7), age(30, None), age(None, 90), age(None, None), age(30)) == (7, 30, 90, None, 30)


@pytest.mark.parametrize("gate", ["load", "resources", "capacity"])
def test_each_gate_that_may_end_undecided_is_let_go_by_its_own_word(gate: str) -> None:
    asked = {"gates": ["contract", gate]}
    verdicts = [("contract", Verdict.PASSED), (gate, Verdict.UNDECIDED)]
    allows, blocks = (parse_policy({**asked, gate: {"undecided": word}}).document for word in ("allow", "block"))
    assert entry(verdicts, allows)[0] is Verdict.PASSED and entry(verdicts, blocks)[0] is Verdict.UNDECIDED
