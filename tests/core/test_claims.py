"""Which claims of an identity token meet a rule."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.core.claims import IssuerKind, check_claims, is_met

K = IssuerKind


@pytest.mark.parametrize(
    ("kind", "name", "claim", "expected"),
    [
        (K.GITHUB, "repository_id", "4711", True),
        (K.GITHUB, "repository_id", 4711, True),
        (K.GITHUB, "repository_id", ["1", "4711"], False),
        (K.GITHUB, "repository_id", ["4711"], False),
        (K.GITHUB, "repository_id", [["4711"]], False),
        (K.GITHUB, "repository_id", {"4711": 1}, False),
        (K.GITLAB, "ref_protected", True, False),
        (K.GITLAB, "project_id", ["4711"], False),
        (K.OTHER, "sub", ["4711"], False),
        (K.OTHER, "groups", ["1", "4711"], True),
        (K.OTHER, "groups", ["1", ["4711"]], False),
        (K.GITLAB, "groups_direct", ["1", "4711"], True),
        (K.GITLAB, "aud", ["https://a.example", "4711"], True),
        (K.GITHUB, "groups_direct", ["4711"], False),
    ],
)
def test_a_list_meets_a_rule_only_where_a_claim_may_have_several_values(
    kind: IssuerKind, name: str, claim: Any, expected: bool
) -> None:
    rule = {name: "4711"}
    assert is_met(rule, {name: claim}, kind) is expected
    (check,) = check_claims(rule, {name: claim}, kind)
    assert check.is_met is expected and check.reason


def test_a_rule_that_demands_nothing_is_never_met() -> None:
    assert not is_met({}, {"sub": "x"}, K.OTHER)
