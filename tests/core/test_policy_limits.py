"""What a policy may ask for: the range of each number at its edges, and what does not fit together."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ledger.core.errors import Invalid
from rollouts.core.policy import Guard, Shadow, Step
from rollouts.core.policy_schema import parse_policy

STEP: dict[str, Any] = {"weight_pct": 5, "min_s": 60, "min_samples": 100, "deadline_s": 600}
MONTH_S = 30 * 86_400
FAST = {"indicator": "slow", "threshold_ms": 250}
TINY = 1e-9


def mistakes(document: dict[str, Any], objectives: dict[str, Any] | None = None) -> set[str]:
    """The fields that are refused."""
    try:
        parse_policy(document, objectives)
    except Invalid as caught:
        return {error["field"] for error in caught.facts["errors"]}
    return set()


def step(**over: Any) -> dict[str, Any]:
    return {"steps": [{**STEP, **over}]}


def guard(**over: Any) -> dict[str, Any]:
    return {"guards": [{"indicator": "errors", **over}]}


DEADLINES = (
    "no_data_s",
    "stale_s",
    "blind_limit_s",
    "ack_deadline_s",
    "prepare_deadline_s",
    "deadline_s",
    "approval_valid_s",
)


@pytest.mark.parametrize(
    ("field", "written", "least", "most", "below"),
    [
        *[(name, lambda value, name=name: {name: value}, TINY, MONTH_S, 0) for name in (*DEADLINES, "dispersion_window_s")],
        *[(name, lambda value, name=name: {name: value}, 0, MONTH_S, -1) for name in ("instant_window_s", "cold_s")],
        ("holdback_pct", lambda value: {"holdback_pct": value}, TINY, 50, 0),
        ("alpha_roll_back", lambda value: {"alpha_roll_back": value}, TINY, 0.5, 0),
        ("alpha_promote", lambda value: {"alpha_promote": value}, TINY, 0.5, 0),
        ("all_failing_attempts", lambda value: {"all_failing_attempts": value}, 5, 10_000, 4),
        ("cold_attempts", lambda value: {"cold_attempts": value}, 0, 100_000, -1),
        ("budget_bad", lambda value: {"budget_bad": value}, 1, 10**9, 0),
        ("approvals.start", lambda value: {"approvals": {"start": value}}, 1, 20, 0),
        ("steps[0].weight_pct", lambda value: step(weight_pct=value), TINY, 100, 0),
        ("steps[0].min_s", lambda value: step(min_s=value, deadline_s=MONTH_S), 0, MONTH_S - 1, -1),
        ("steps[0].min_samples", lambda value: step(min_samples=value), 1, 10**9, 0),
        ("steps[0].deadline_s", lambda value: step(min_s=0, deadline_s=value), TINY, MONTH_S, 0),
        ("guards[0].max_frac", lambda value: guard(max_frac=value), 0, 1, -0.1),
        ("guards[0].roll_back_over.ratio", lambda value: guard(roll_back_over={"ratio": value, "plus_frac": 0}), 1, 100, 0.9),
        ("guards[0].roll_back_over.plus_frac", lambda value: guard(roll_back_over={"ratio": 1, "plus_frac": value}), 0, 1, -1),
        ("guards[0].alpha", lambda value: {**guard(alpha=value), "alpha_roll_back": 0.5}, TINY, 0.5, 0),
    ],
)  # fmt: skip
def test_a_number_is_taken_up_to_its_limits_and_not_beyond(field, written, least, most, below) -> None:
    for value in (least, most):
        assert mistakes(written(value)) == set(), value
    beyond = most + 1 if isinstance(most, int) else most + 0.01
    if field != "steps[0].min_s":  # a longer one is over every deadline
        assert mistakes(written(beyond)) == {field}
    assert field in mistakes(written(below))


@pytest.mark.parametrize(
    ("name", "most", "written"),
    [
        ("steps", 50, lambda n: {"steps": [{**STEP, "weight_pct": 1 + i} for i in range(n)]}),
        ("guards[0].thresholds_ms", 8, lambda n: {"guards": [{**FAST, "thresholds_ms": [250] * n}]}),
        ("freeze_windows", 50, lambda n: {"freeze_windows": [{}] * n}),
        ("freeze_windows[0].days", 7, lambda n: {"freeze_windows": [{"days": ["mon"] * n}]}),
        ("freeze_windows[0].why", 200, lambda n: {"freeze_windows": [{"why": "x" * n}]}),
    ],
)
def test_a_list_or_text_is_taken_up_to_its_length(name: str, most: int, written: Any) -> None:
    assert mistakes(written(most)) == set() and mistakes(written(most + 1)) == {name}


def test_steps_must_grow_and_a_deadline_comes_after_the_minimum() -> None:
    def steps(*weights: float) -> dict[str, Any]:
        return {"steps": [{**STEP, "weight_pct": weight} for weight in weights]}

    assert mistakes(steps(5, 5.01)) == set() and mistakes(steps(5, 5)) == {"steps"}
    assert mistakes(step(min_s=600, deadline_s=600)) == {"steps[0].deadline_s"}
    assert mistakes(step(min_s=600, deadline_s=600.1)) == set()


def test_guards_share_alpha_and_one_without_its_own_needs_some_left() -> None:
    alone, other = {"indicator": "errors", "alpha": 0.01}, {**FAST}
    assert mistakes({"guards": [alone]}) == set()  # all of it
    assert mistakes({"guards": [{**alone, "alpha": 0.0100001}]}) == {"guards"}
    assert mistakes({"guards": [alone, other]}) == {"guards"}  # nothing is left for the other
    assert mistakes({"guards": [{**alone, "alpha": 0.0099}, other]}) == set()
    assert mistakes({"guards": [{**alone, "alpha": 0.005}, {**other, "alpha": 0.005}]}) == set()


@pytest.mark.parametrize(
    ("stage", "is_known"),
    [
        ("start", True),
        ("step 2", True),
        ("step 3", True),
        ("step 4", False),
        ("step 1", False),
        ("bake", True),
        ("promote", True),
        ("end", False),
    ],
)
def test_approvals_name_stages_that_there_are(stage: str, is_known: bool) -> None:
    assert (mistakes({"approvals": {stage: 1}}) == set()) is is_known


def test_a_freeze_lasts_from_its_first_day_to_its_last_which_may_be_the_same() -> None:
    one = {
        "freeze_windows": [
            {
                "first_day": "2026-12-20",
                "last_day": "2026-12-20",
                "from": "16:30",
                "to": "24:00",
                "days": ["mon", "sun"],
            }
        ]
    }
    window = parse_policy(one).freeze_windows[0]
    assert (window.from_min, window.to_min, window.days) == (16 * 60 + 30, 24 * 60, {0, 6})
    assert window.first_day == window.last_day is not None
    whole = parse_policy({"freeze_windows": [{}]}).freeze_windows[0]
    assert (whole.from_min, whole.to_min, len(whole.days), whole.first_day, whole.why) == (0, 1440, 7, None, "")


def test_slow_points_are_the_edges_nearest_to_a_quarter_and_a_half_of_the_objective() -> None:
    def points(threshold_ms: float) -> tuple[int, ...]:
        return parse_policy({"guards": [{"indicator": "slow", "threshold_ms": threshold_ms}]}).guards[0].thresholds_us

    assert points(250) == (50_000, 100_000, 250_000)
    assert points(1000) == (250_000, 500_000, 1_000_000)
    least = min(
        one for one in (0.5, 1, 2, 5, 10) if not mistakes({"guards": [{"indicator": "slow", "threshold_ms": one}]})
    )
    assert points(least)[-1] == round(least * 1000)


# --- what a policy says of itself -------------------------------------------------------------------------------------


def test_units_of_stages() -> None:
    policy = parse_policy({"steps": [{**STEP, "weight_pct": 0.25}], "holdback_pct": 2.5})
    assert policy.steps == (Step(25, 60, 100, 600),)
    assert (policy.holdback_bp, policy.bake.weight_bp) == (250, 9750)
    assert Shadow(1000, 1.0, 2, 3.0).as_step == Step(0, 1.0, 2, 3.0)


def test_no_weight_leaves_stable_less_than_the_holdback() -> None:
    policy = replace(parse_policy(step(weight_pct=100)), holdback_bp=500)
    facing = policy.facing(has_stable=True)
    assert (facing.steps[0].weight_bp, facing.bake.weight_bp) == (9500, 9500)
    alone = policy.facing(has_stable=False)
    assert (alone.steps[0].weight_bp, alone.bake.weight_bp, len(alone.steps)) == (10_000, 10_000, 1)


def test_bars_by_hand() -> None:
    """Two tests of each of two guards in five stages (shadow, three steps, bake) share a hundredth; a twentieth promotes."""
    two = parse_policy(
        {"guards": [{"indicator": "errors"}, FAST, {"indicator": "wrong"}], "shadow": {**_SHADOW, "sample_pct": 1}}
    )
    assert two.stages == 5
    assert two.bar_worse == pytest.approx(math.log(2 * 3 * 5 / 0.01))
    assert [two.bar_worse_of(one) for one in two.guards] == pytest.approx([two.bar_worse] * 3)
    assert two.bar_fine == pytest.approx(math.log(20))


_SHADOW = {"sample_pct": 0, "min_s": 1, "min_samples": 1, "deadline_s": 9}


def test_stages_and_guards_have_names() -> None:
    policy = parse_policy({})
    assert [policy.stage_name(i) for i in (-1, 0, 1, 2, 3)] == ["start", "start", "step 2", "step 3", "bake"]
    slow = Guard("slow", 0.1, policy.guards[0].roll_back_over, policy.guards[0].promote_within, threshold_us=2500)
    assert (slow.name, slow.words, slow.points) == ("slow_2.5ms", "slow requests (over 2.5 ms)", ("slow_2.5ms",))
    external = replace(slow, indicator="external", label="failed_orders")
    assert (external.name, external.words) == ("external_failed_orders", "failed orders")
    assert replace(slow, indicator="wrong").words == "wrong answers"
