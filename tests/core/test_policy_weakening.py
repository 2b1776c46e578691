"""A policy of one's own weakens the model's rules only by name: approvals by weight, how long they count, freeze windows."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.core.policy_schema import parse_policy
from rollouts.core.policy_weakening import differing_fields, weaker_approvals

OBJECTIVES = {"errors_max_frac": 0.01}


def step(weight_pct: float) -> dict[str, Any]:
    return {"weight_pct": weight_pct, "min_s": 60, "min_samples": 100, "deadline_s": 3600}


def weaker(own: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return weaker_approvals(parse_policy(own, OBJECTIVES), parse_policy(other, OBJECTIVES))


FRIDAY = {"days": ["fri"], "from": "16:00", "to": "24:00", "why": "On call"}
TWO: dict[str, Any] = {"steps": [step(25), step(50)]}
THREE = {"steps": [step(5), step(25), step(50)]}


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({"approvals": {"start": 1}}, {}),
        ({"approvals": {"start": 2}}, {"approvals": {"start": 1}}),
        ({"approvals": {"bake": 1}}, {"approvals": {"start": 1}}),
        ({"approvals": {"promote": 1}}, {"approvals": {"start": 1}}),
        ({**THREE, "approvals": {"step 2": 1, "step 3": 1}}, {**THREE, "approvals": {"step 2": 1}}),
        ({**THREE, "approvals": {"step 2": 2}}, {**THREE, "approvals": {"start": 1, "step 2": 1}}),
        ({**THREE, "approvals": {"step 2": 1}}, {**THREE, "approvals": {"step 3": 1}}),
        ({**THREE, "approvals": {"step 3": 1}}, {"steps": [step(50)], "approvals": {"bake": 1}}),
        ({**THREE, "approvals": {"start": 1, "bake": 1}}, {"steps": [step(5)], "approvals": {"start": 1}}),
        # a further stage, just below the weight that an approval guards
        ({**TWO, "approvals": {"start": 2}}, {"steps": [step(24.99), *TWO["steps"]], "approvals": {"step 2": 2}}),
        ({**THREE, "approvals": {"step 2": 1}}, {"steps": [step(5), step(24.9)], "approvals": {"bake": 1}}),
        ({"approvals": {"promote": 1}}, {"approvals": {"promote": 1}, "holdback_pct": 0.01}),
        ({"approvals": {"bake": 1}}, {"steps": [step(94.99)], "approvals": {"bake": 1}}),
        ({"approvals": {"start": 1}}, {"approvals": {"start": 1}, "approval_valid_s": 864_000}),
        ({"freeze_windows": [{"why": "Year-end"}]}, {}),
        ({"freeze_windows": [FRIDAY]}, {"freeze_windows": [{**FRIDAY, "from": "16:01"}]}),
        ({}, {"when_stable_is_gone": "replace"}),
        ({"approvals": {"promote": 2}}, {"approvals": {"promote": 2}, "when_stable_is_gone": "replace"}),
        ({"when_stable_is_gone": "replace"}, {"when_stable_is_gone": "replace", "stable_gone_s": 59}),
    ],
)
def test_what_asks_for_less_is_named(own: dict[str, Any], other: dict[str, Any]) -> None:
    assert weaker(own, other)
    assert weaker(own, own) == [] and weaker(other, other) == []


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({}, {"approvals": {"start": 1}}),
        ({}, {"preset": "fast"}),
        ({"approvals": {"start": 1}}, {"preset": "careful", "approvals": {"start": 1}}),
        ({"approvals": {"start": 1}}, {"approvals": {"start": 1, "bake": 1}, "approval_valid_s": 3600}),
        ({**THREE, "approvals": {"step 3": 1}}, {**THREE, "approvals": {"step 2": 1}}),
        ({**THREE, "approvals": {"step 3": 1}}, {"steps": [step(50)], "approvals": {"start": 1}}),
        ({**TWO, "approvals": {"start": 2}}, {"steps": [step(24.99), *TWO["steps"]], "approvals": {"start": 2}}),
        ({"approvals": {"promote": 1}}, {"approvals": {"promote": 1}, "holdback_pct": 20}),
        ({"freeze_windows": [FRIDAY]}, {"freeze_windows": [{**FRIDAY, "from": "12:00"}]}),
        ({"freeze_windows": [FRIDAY]}, {"freeze_windows": [{**FRIDAY, "why": "Weekend"}]}),
        ({"freeze_windows": [FRIDAY]}, {"freeze_windows": [{"why": "Always"}]}),
        ({"when_stable_is_gone": "replace"}, {}),
        ({"when_stable_is_gone": "replace"}, {"when_stable_is_gone": "replace", "stable_gone_s": 61}),
        ({"stable_gone_s": 60}, {"stable_gone_s": 1}),
        ({"freeze_windows": [{"why": "Year-end"}]}, {"freeze_windows": [{"why": "Year-end"}, {"why": "Sale"}]}),
    ],
)
def test_what_asks_for_as_much_is_fine(own: dict[str, Any], other: dict[str, Any]) -> None:
    assert weaker(own, other) == []


def test_fields_that_differ_are_named() -> None:
    own, other = (parse_policy(one, OBJECTIVES) for one in ({}, {"deadline_s": 7200, "on_undecided": "roll_back"}))
    assert set(differing_fields(own.document, other.document)) == {"deadline_s", "on_undecided"}
    assert differing_fields(own.document, own.document) == []
