"""The numbers that rollouts follow where nobody gave others: the standard ones as the page tells them, the others' by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rollouts.core.policy import Step
from rollouts.core.policy_schema import parse_policy
from rollouts.core.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "rollouts.md"
OBJECTIVES = {"slow": {"threshold_ms": 250, "max_frac": 0.01}, "wrong": {"max_frac": 0.01}}


def told() -> dict[str, str]:
    """By field: what the page's table says of the standard preset."""
    rows = re.findall(r"^\| (`.*?) \|[^|]*\| (.*?) \|", PAGE.read_text().partition("\nA guard:")[0], flags=re.M)
    return {name: value for names, value in rows for name in re.findall(r"`(\w[\w.\[\]]*)`", names)}


@pytest.mark.parametrize(
    "field",
    [
        "holdback_pct", "alpha_roll_back", "alpha_promote", "budget_bad", "deadline_s", "all_failing_attempts", "cold_attempts",
        "cold_s", "no_data_s", "stale_s", "blind_limit_s", "ack_deadline_s", "prepare_deadline_s", "dispersion_window_s",
        "approval_valid_s", "instant_window_s", "undo_max_s", "stable_gone_s",
    ],
)  # fmt: skip
def test_the_page_tells_the_standard_presets_numbers(field: str) -> None:
    number = re.search(r"[\d.]+", told()[field])
    assert number is not None and float(number[0]) == PRESETS["standard"][field]


def test_the_page_tells_the_standard_presets_stages_and_limits_of_ignorance() -> None:
    table, standard = told(), PRESETS["standard"]
    weights = [float(one) for one in table["steps[].weight_pct"].split(", ")]
    assert [step["weight_pct"] for step in standard["steps"]] == weights
    for name in ("min_s", "min_samples", "deadline_s"):
        assert {step[name] for step in standard["steps"]} == {float(table[f"steps[].{name}"])}
    assert re.findall(r"\d+", table["bake"]) == [str(one) for one in standard["bake"].values()]
    assert "`sample_pct` 0 (careful: 10)" in table["shadow"]
    assert table["on_undecided"] == "`hold`" == f"`{standard['on_undecided']}`"
    assert table["on_blind"] == f"120, `{standard['on_blind']}`"
    assert table["when_stable_is_gone"] == f"60, `{standard['when_stable_is_gone']}`"
    assert (standard["approvals"], standard["freeze_windows"]) == ({}, [])


#: What a model that names a preset gets besides: weights in percent, then seconds, attempts and seconds of each step and of
#: the bake, the shadow, and what differs from standard. Changed numbers change what its next rollout does.
STAGES: dict[str, tuple[tuple[int, ...], tuple[int, int, int], tuple[int, int, int], tuple[int, int, int, int]]] = {
    "careful": ((1, 5, 10, 25, 50), (300, 500, 7200), (3600, 1000, 14_400), (10, 120, 200, 3600)),
    "standard": ((5, 25, 50), (180, 300, 3600), (1800, 500, 7200), (0, 60, 100, 1800)),
    "fast": ((10, 50), (60, 100, 900), (300, 200, 1800), (0, 60, 100, 1800)),
    "demo": ((25, 50), (5, 40, 90), (6, 40, 90), (0, 60, 100, 1800)),
}


def _second_look(after_s: float) -> dict[str, Any]:
    return {"looks": 1, "after_s": after_s, "alpha_second": 0.05}


DIFFERS: dict[str, dict[str, Any]] = {
    "careful": {"budget_bad": 50, "deadline_s": 172_800, "instant_window_s": 86_400, "undo_max_s": 172_800},
    "standard": {},
    "fast": {
        "all_failing_attempts": 5, "second_look": _second_look(30), "cold_s": 30, "budget_bad": 500, "deadline_s": 14_400,
        "instant_window_s": 3600,
    },
    "demo": {
        "all_failing_attempts": 5, "no_data_s": 10, "stale_s": 5, "blind_limit_s": 20, "prepare_deadline_s": 180, "stable_gone_s": 10,
        "second_look": _second_look(5),
        "dispersion_window_s": 2, "cold_s": 0, "cold_attempts": 10, "budget_bad": 500, "deadline_s": 900, "instant_window_s": 20,
        "undo_max_s": 600,
    },
}  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_standard_but_for_its_stages_and_what_is_named(preset: str) -> None:
    weights, step, bake, shadow = STAGES[preset]
    policy = parse_policy({"preset": preset}, OBJECTIVES)
    assert policy.steps == tuple(Step(100 * weight, *step) for weight in weights)
    assert policy.bake == Step(9500, *bake)
    assert tuple(PRESETS[preset]["shadow"].values()) == shadow
    assert (policy.shadow and policy.shadow.sample_bp) == (100 * shadow[0] or None)
    numbers = {name: value for name, value in PRESETS[preset].items() if name not in {"steps", "bake", "shadow"}}
    assert numbers == {**{name: PRESETS["standard"][name] for name in numbers}, **DIFFERS[preset]}


STRICT = {"errors": (1.2, 0.001), "slow_250ms": (1.5, 0.005), "wrong": (1.5, 0.005), "refused": (1.0, 0.01)}


@pytest.mark.parametrize(
    ("preset", "over", "within"),
    [
        ("careful", STRICT, (1.5, 0.005)),
        ("standard", STRICT, (2, 0.005)),
        ("fast", STRICT, (2, 0.01)),
        ("demo", dict.fromkeys(STRICT, (1.5, 0.02)), (2, 0.1)),
    ],
)
def test_what_is_tolerated_beside_stable_unless_the_guard_says(preset: str, over: dict, within: tuple) -> None:
    policy = parse_policy({"preset": preset}, OBJECTIVES)
    found = {guard.name: (guard.roll_back_over.ratio, guard.roll_back_over.plus_frac) for guard in policy.guards}
    assert found == over
    assert {(guard.promote_within.ratio, guard.promote_within.plus_frac) for guard in policy.guards} == {within}
    assert {guard.name: guard.max_frac for guard in policy.guards}["errors"] == 0.01
    asked = {"indicator": "external", "label": "a", "bad_query": 'b{r="$release"}', "total_query": 't{r="$release"}'}
    external = parse_policy(
        {"preset": preset, "guards": [asked, *({"indicator": "wrong"},) * bool(policy.shadow)]}
    ).guards[0]
    expected = (1.5, 0.02) if preset == "demo" else (1.2, 0.005)
    assert (external.roll_back_over.ratio, external.roll_back_over.plus_frac) == expected
    assert external.is_critical and external.must_have_data and not external.is_dry_run


def test_a_careful_rollout_never_does_more_sooner_than_a_standard_one_nor_that_than_a_fast_one() -> None:
    for name in ("deadline_s", "instant_window_s"):
        values = [PRESETS[preset][name] for preset in ("careful", "standard", "fast", "demo")]
        assert values == sorted(values, reverse=True)
    budgets = [PRESETS[preset]["budget_bad"] for preset in ("careful", "standard", "fast", "demo")]
    assert budgets == sorted(budgets)
    for preset in PRESETS.values():
        for stage in (*preset["steps"], preset["bake"], preset["shadow"]):
            assert stage["min_s"] < stage["deadline_s"]
