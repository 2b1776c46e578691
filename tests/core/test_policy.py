"""Rollout policies: presets, defaults, and every mistake named at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ledger.core.errors import Invalid
from rollouts.core.evidence import Tolerance
from rollouts.core.policy import OnUndecided
from rollouts.core.policy_schema import followed_policy, parse_policy, stored_policy, watching_refusals
from rollouts.core.presets import PRESETS
from serving.traffic.core.buckets import EDGES_US

OBJECTIVES = {"errors_max_frac": 0.002, "slow": {"threshold_ms": 250, "max_frac": 0.01}}


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_whole_and_reads_back_to_the_same_digest(preset: str) -> None:
    policy = parse_policy({"preset": preset}, OBJECTIVES)
    shadowed = ["wrong"] if policy.shadow else []
    assert [guard.name for guard in policy.guards] == ["errors", "slow_250ms", *shadowed, "refused"]
    assert policy.guards[0].max_frac == 0.002
    assert policy.on_undecided is OnUndecided.HOLD
    again = parse_policy(policy.document)
    assert again == policy and again.digest.startswith("sha256:")


def test_presets_differ_only_in_numbers() -> None:
    def shape(value: object) -> object:
        if isinstance(value, dict):
            return {name: shape(one) for name, one in value.items()}
        return "list" if isinstance(value, list) else "number" if isinstance(value, (int, float)) else value

    assert len({str(shape(preset)) for preset in PRESETS.values()}) == 1


def test_standard_is_the_default_and_errors_are_always_guarded() -> None:
    policy = parse_policy({})
    assert policy.digest == parse_policy({"preset": "standard"}).digest
    assert [(guard.indicator, guard.max_frac) for guard in policy.guards] == [("errors", 0.01), ("refused", 1.0)]
    assert policy.guards[0].roll_back_over == Tolerance(1.2, 0.001)


def test_what_is_given_replaces_the_preset_only_there() -> None:
    given = {
        "preset": "fast",
        "holdback_pct": 10,
        "guards": [{"indicator": "slow", "threshold_ms": 500, "max_frac": 0.05}],
    }
    policy = parse_policy(given)
    assert policy.holdback_bp == 1000
    assert policy.guards[0].threshold_us == 500_000 in EDGES_US
    assert policy.steps == parse_policy({"preset": "fast"}).steps


def test_stable_is_left_its_holdback_and_a_first_release_takes_one_step() -> None:
    given = {
        "steps": [{"weight_pct": w, "min_s": 1, "min_samples": 1, "deadline_s": 9} for w in (50, 100)],
        "holdback_pct": 5,
    }
    policy = parse_policy(given)
    assert [step.weight_bp for step in policy.facing(has_stable=True).steps] == [5000, 9500]
    assert policy.facing(has_stable=True).bake.weight_bp == 9500
    assert [step.weight_bp for step in policy.facing(has_stable=False).steps] == [10_000]


def test_alpha_is_shared_out_over_all_tests_of_a_rollout() -> None:
    policy = parse_policy({"preset": "standard", "alpha_roll_back": 0.016}, OBJECTIVES)
    assert policy.alpha_of_one_test(policy.guards[1]) == pytest.approx(0.9 * 0.016 / (2 * 2 * 4))
    assert policy.alpha_of_one_test(policy.guards[2]) == pytest.approx(0.1 * 0.016 / (2 * 4))  # refused requests


@pytest.mark.parametrize(
    ("guards", "alpha"),
    [
        ([{"indicator": "errors"}], 0.001),
        ([{"indicator": "errors"}, {"indicator": "slow", "threshold_ms": 250, "alpha": 0.004}], 0.0006),
        ([{"indicator": "errors", "alpha": 0.0096}], 0.0004),
    ],
)
def test_a_rollout_begins_with_a_guard_on_refused_requests(guards: list[dict[str, Any]], alpha: float) -> None:
    wide = {"ratio": 3, "plus_frac": 0.03}
    asked = parse_policy({"guards": [{**guards[0], "promote_within": wide}, *guards[1:]]})
    plan = watching_refusals(asked)
    assert plan.guards[:-1] == asked.guards and plan.guards[-1].indicator == "refused"
    assert plan.guards[-1].alpha == pytest.approx(alpha) and plan.guards[-1].promote_within.plus_frac == 0.03
    assert sum(2 * plan.stages * plan.alpha_of_one_test(one) for one in plan.guards) <= 0.01 * (1 + 1e-9)
    assert watching_refusals(plan) is plan and parse_policy(plan.document).digest == plan.digest


@pytest.mark.parametrize(
    "guards",
    [
        [{"indicator": "errors"}, {"indicator": "refused", "dry_run": True}],
        [{"indicator": "errors", "alpha": 0.01}],  # leaves nothing
    ],
)
def test_a_policy_may_turn_the_guard_on_refused_requests_off(guards: list[dict[str, Any]]) -> None:
    asked = parse_policy({"guards": guards})
    assert watching_refusals(asked) is asked


def test_a_policy_that_was_stored_without_the_guard_of_refused_requests_goes_on_without_it() -> None:
    document = parse_policy({}).document
    stored = {**document, "guards": [one for one in document["guards"] if one["indicator"] != "refused"]}
    policy = stored_policy(stored)
    assert [guard.name for guard in policy.guards] == ["errors"]
    assert policy.alpha_of_one_test(policy.guards[0]) == policy.alpha_roll_back / (2 * policy.stages)


@pytest.mark.parametrize(
    ("document", "field", "fix"),
    [
        ({"stepz": []}, "stepz", "steps"),
        ({"preset": "yolo"}, "preset", "careful"),
        ({"steps": []}, "steps", "List 1 to 50"),
        ({"steps": [{"weight_pct": 5}]}, "steps[0].min_s", "Add min_s"),
        (
            {"steps": [{"weight_pct": w, "min_s": 1, "min_samples": 1, "deadline_s": 9} for w in (50, 5)]},
            "steps",
            "smallest",
        ),
        ({"bake": {"min_s": 60, "min_samples": 1, "deadline_s": 30}}, "bake.deadline_s", "longer than min_s"),
        ({"guards": [{"indicator": "slow", "threshold_ms": 251}]}, "guards[0].threshold_ms", "250"),
        ({"guards": [{"indicator": "slow"}]}, "guards[0].threshold_ms", "objectives.slow"),
        ({"guards": [{"indicator": "errors"}, {"indicator": "errors"}]}, "guards", "once"),
        ({"guards": [{"indicator": "errors", "threshold_ms": 250}]}, "guards[0].threshold_ms", "indicator: slow"),
        ({"alpha_roll_back": 0}, "alpha_roll_back", "above 0"),
        ({"bake_s": 30}, "bake_s", "bake:"),
        ({"holdback_pct": 0}, "holdback_pct", "above 0"),
        ({"on_undecided": "advance"}, "on_undecided", "hold, roll_back"),
    ],
)
def test_a_mistake_names_the_field_and_the_fix(document: dict, field: str, fix: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_policy(document)
    assert caught.value.code == "rollout_policy_invalid"
    found = {error["field"]: error["fix"] for error in caught.value.facts["errors"]}
    assert field in found and fix in found[field]


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        parse_policy({"holdback_pct": 99, "no_data_s": "soon", "what": 1})
    assert {error["field"] for error in caught.value.facts["errors"]} == {"holdback_pct", "no_data_s", "what"}


# --- the policy in full -----------------------------------------------------------------------------------------------


def test_slow_is_counted_at_several_points_around_the_objective() -> None:
    slow = parse_policy({}, OBJECTIVES).guards[1]
    assert (slow.name, slow.points) == ("slow_250ms", ("slow_50ms", "slow_100ms", "slow_250ms"))
    assert set(slow.thresholds_us) <= set(EDGES_US) and len(slow.points) == 3
    given = {"indicator": "slow", "threshold_ms": 250, "thresholds_ms": [100, 500]}
    assert parse_policy({"guards": [given]}).guards[0].points == ("slow_100ms", "slow_250ms", "slow_500ms")


def test_guards_of_every_source() -> None:
    external = {
        "indicator": "external",
        "label": "checkout",
        "bad_query": 'failed{release="$release"}',
        "total_query": 'all{release="$release"}',
        "critical": False,
        "must_have_data": False,
    }
    policy = parse_policy({"guards": [{"indicator": "errors"}, {"indicator": "wrong", "dry_run": True}, external]})
    assert [(guard.name, guard.source.value) for guard in policy.guards] == [
        ("errors", "gateway"),
        ("wrong", "prober"),
        ("external_checkout", "prometheus"),
    ]
    assert policy.guards[1].is_dry_run and not policy.guards[2].is_critical and not policy.guards[2].must_have_data
    assert parse_policy(policy.document) == policy


def test_a_guard_may_have_its_own_share_of_alpha() -> None:
    policy = parse_policy(
        {"guards": [{"indicator": "errors", "alpha": 0.008}, {"indicator": "slow", "threshold_ms": 50}]}
    )
    errors, slow = policy.guards
    assert policy.alpha_of_one_test(errors) == pytest.approx(0.008 / 8)
    assert policy.alpha_of_one_test(slow) == pytest.approx(0.002 / 8)
    assert policy.bar_worse_of(slow) > policy.bar_worse_of(errors)


def test_shadowing_is_a_stage_of_its_own_where_there_is_a_stable_release() -> None:
    policy = parse_policy({"preset": "careful"}, OBJECTIVES)
    assert policy.shadow is not None and policy.shadow.sample_bp == 1000
    assert (
        policy.stages
        == parse_policy({"preset": "careful", "shadow": {**policy.document["shadow"], "sample_pct": 0}}).stages + 1
    )
    assert policy.facing(has_stable=False).shadow is None


def test_stages_have_names_for_approvals() -> None:
    policy = parse_policy({"approvals": {"start": 1, "step 3": 2, "bake": 1, "promote": 1}})
    assert [policy.stage_name(i) for i in range(4)] == ["start", "step 2", "step 3", "bake"]
    assert policy.approvals["step 3"] == 2


def test_no_budget_is_not_the_presets_budget() -> None:
    assert parse_policy({}).budget_bad == 200
    assert parse_policy({"budget_bad": None}).budget_bad is None
    assert parse_policy(parse_policy({"budget_bad": None}).document).budget_bad is None


_ASKED = {"indicator": "external", "label": "x", "bad_query": "b", "total_query": 't{r="$release"}'}


@pytest.mark.parametrize(
    ("document", "field", "fix"),
    [
        ({"approvals": {"step 9": 1}}, "approvals.step 9", "step 2, step 3, bake, promote"),
        ({"approvals": {"start": 0}}, "approvals.start", "1 to 20"),
        ({"guards": [{"indicator": "external"}]}, "guards[0].label", "Add label"),
        ({"guards": [_ASKED]}, "guards[0].bad_query", "$release"),
        ({"guards": [{"indicator": "errors", "bad_query": "x"}]}, "guards[0].bad_query", "indicator: external"),
        ({"guards": [{"indicator": "errors", "alpha": 0.02}]}, "guards", "smaller"),
        (
            {"guards": [{"indicator": "slow", "threshold_ms": 250, "thresholds_ms": [99]}]},
            "guards[0].thresholds_ms",
            "100",
        ),
        ({"freeze_windows": [{"days": ["caturday"]}]}, "freeze_windows[0].days[0]", "sat"),
        ({"freeze_windows": [{"from": "25:00"}]}, "freeze_windows[0].from", "16:30"),
        ({"freeze_windows": [{"time_zone": "Berlin"}]}, "freeze_windows[0].time_zone", "Europe/Berlin"),
        ({"freeze_windows": [{"time_zone": "CEST"}]}, "freeze_windows[0].time_zone", "IANA"),
        ({"freeze_windows": [{"time_zone": "../UTC"}]}, "freeze_windows[0].time_zone", "Europe/Berlin"),
        (
            {"freeze_windows": [{"first_day": "2026-12-31", "last_day": "2026-12-01"}]},
            "freeze_windows[0].last_day",
            "Swap",
        ),
        ({"freeze_windows": [{"first_day": "2026-02-31"}]}, "freeze_windows[0]", "2026-12-20"),
        ({"preset": "careful", "guards": [{"indicator": "errors"}]}, "guards", "{indicator: wrong}"),
        ({"shadow": {"sample_pct": 5, "min_s": 60, "min_samples": 1, "deadline_s": 30}}, "shadow.deadline_s", "min_s"),
    ],
)
def test_a_mistake_in_the_full_policy_names_the_field_and_the_fix(document: dict, field: str, fix: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_policy(document)
    found = {error["field"]: error["fix"] for error in caught.value.facts["errors"]}
    assert field in found and fix in found[field], found


def test_what_nothing_watches_is_refused_where_it_is_asked_for_and_read_where_it_is_stored() -> None:
    document = {**parse_policy({"preset": "demo"}).document, "guards": [{"indicator": "errors", "dry_run": True}]}
    with pytest.raises(Invalid, match="nothing would watch"):
        parse_policy(document)
    stored = stored_policy(document)
    assert stored.guards[0].is_dry_run and stored.steps == parse_policy({"preset": "demo"}).steps
    with pytest.raises(Invalid, match="cannot be read"):
        stored_policy({**document, "holdback_pct": 99})
    assert stored_policy(parse_policy({}).document) == parse_policy({})


def test_a_policy_that_is_followed_is_read_once_for_each_text_and_each_kind_of_rollout() -> None:
    text = json.dumps(parse_policy({"preset": "demo"}).document)
    beside, alone = (followed_policy(text, has_stable=has_stable) for has_stable in (True, False))
    assert followed_policy(text, has_stable=True) is beside and alone is not beside
    assert beside == stored_policy(json.loads(text)).facing(has_stable=True) and len(alone.steps) == 1
    other = json.dumps(parse_policy({"preset": "careful"}).document)
    assert followed_policy(other, has_stable=True).digest != beside.digest
