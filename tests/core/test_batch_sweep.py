"""Other batchings beside a release's own: which are tried and for how long, and what of their differences is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ledger.core.errors import Invalid
from serving.core.variants import Batching
from validators.core.batch_sweep import Point, Tried, as_evidence, difference, plan_of
from validators.core.load import Attempt, summarise
from validators.core.policy import parse_policy

SERVING: dict[str, Any] = {
    "max_batch_size": 8,
    "dynamic_batching": {"preferred_batch_size": [4, 8], "max_queue_delay_us": 1000},
}
SWEEP = {"max_queue_delay_us": [0, 1000], "max_batch_size": [4, 8]}
OWN, OTHER, THIRD = Batching(8, 1000), Batching(4, 0), Batching(8, 0)
RUN_S = 10


def section(**over: Any) -> dict[str, Any]:
    policy = parse_policy({"gates": ["capacity"], "capacity": {"sweep": {**SWEEP, **over}}})
    found: dict[str, Any] = policy.of("capacity")["sweep"]
    return found


PLAN = plan_of(section(of_proven=[0.5, 1.2]), SERVING)


def point(rate_per_s: float, slow_share: float = 0.0, took_ms: float = 10.0, seed: int = 0, limited: str = "") -> Point:
    """A run of `RUN_S` s whose slow requests are a share of each second, but for chance."""
    chance = np.random.default_rng(seed)
    dues = np.arange(int(rate_per_s * RUN_S)) / rate_per_s
    took = np.where(chance.random(len(dues)) < slow_share, 500.0, took_ms + chance.random(len(dues)))
    attempts = [Attempt(due, due, due + ms / 1000, at=at) for at, (due, ms) in enumerate(zip(dues, took, strict=True))]
    stages = {"queue_ms": 2.0, "total_ms": 8.0, "mean_batch": 1.5, "busy_frac": 0.25}
    return Point(rate_per_s, summarise(attempts, duration_s=RUN_S, slo_ms=100), took, stages, limited)


def tried(batching: Batching, *slow: float, seed: int = 1, **how: Any) -> Tried:
    return Tried(
        batching, tuple(point(rate, share, seed=seed, **how) for rate, share in zip((40, 96), slow, strict=True))
    )


def evidence(*rows: Tried) -> dict[str, Any]:
    return as_evidence(rows, PLAN, confidence=0.9)


def test_each_batching_is_tried_once_and_the_own_first_and_last() -> None:
    plan = plan_of(section(), SERVING)
    assert plan.batchings == (OWN, Batching(4, 0), Batching(4, 1000), Batching(8, 0), OWN)
    assert (plan.shares, plan.run_s, plan.start_s) == ((0.5, 0.9, 1.2), 8, 16.0)
    assert [plan.last_begin_s(at) for at in (1, 4)] == [240 - 64, 240 - 24], "the own, again, is not to be left out"
    without = {"max_batch_size": 8}
    assert plan_of(section(max_queue_delay_us=[]), without).batchings == (
        Batching(8, None),
        Batching(4, None),
        Batching(8, None),
    )


def test_another_batching_changes_nothing_else_of_the_serving() -> None:
    found = Batching(4, 500).within({**SERVING, "inputs": ["x"]})
    assert found["dynamic_batching"] == {"preferred_batch_size": [4], "max_queue_delay_us": 500}
    assert (found["max_batch_size"], found["inputs"]) == (4, ["x"])
    assert Batching.of(found) == Batching(4, 500)
    assert "dynamic_batching" not in Batching(2, None).within({"max_batch_size": 4})
    assert SERVING["max_batch_size"] == 8


def test_warm_up_requests_that_are_larger_than_its_batches_go() -> None:
    serving = {**SERVING, "warmup": [{"batch_size": 8, "inputs": {}}, {"batch_size": 4, "inputs": {}}, {"inputs": {}}]}
    assert Batching(4, 500).within(serving)["warmup"] == [{"batch_size": 4, "inputs": {}}, {"inputs": {}}]
    assert Batching(2, None).within(serving)["warmup"] == [{"inputs": {}}]
    assert len(serving["warmup"]) == 3


def test_a_difference_has_the_interval_of_students_t() -> None:
    found = difference([3, 5, 4, 6], [2, 3, 2, 3], confidence=0.95)
    assert found is not None and found.is_seen
    assert (found.value, round(found.high - found.value, 3)) == (2.0, 1.299)  # 3.182 · 0.8165 / 2
    same = difference([1, 2, 1, 2], [2, 1, 2, 1], confidence=0.95)
    assert same is not None and not same.is_seen
    assert difference([1, float("nan")], [1, 1], confidence=0.95) is None


def test_the_batching_that_answers_more_in_time_is_advised_with_those_that_cannot_be_told_from_it() -> None:
    found = evidence(
        tried(OWN, 0, 0.3), tried(OTHER, 0, 0.05, seed=2), tried(THIRD, 0, 0.06, seed=3), tried(OWN, 0, 0.3, seed=4)
    )
    assert found["best"] in (1, 2) and found["alike"] == [3 - found["best"]]
    assert (
        found["says"].startswith("At 96 requests/s max_batch_size")
        and "Not told from it: max_batch_size" in found["says"]
    )
    row = found["rows"][1]["points"][1]
    assert row["more_per_s"]["low"] > 0 and (row["mean_batch"], row["queue_frac"], row["busy_frac"]) == (
        1.5,
        0.25,
        0.25,
    )
    assert found["rows"][0]["points"][1]["more_per_s"] is None
    assert [one["is_own"] for one in found["rows"]] == [True, False, False, True]


def test_a_batching_that_answers_less_at_a_lower_rate_is_not_advised() -> None:
    found = evidence(tried(OWN, 0, 0.3), tried(OTHER, 0.4, 0.0), tried(OWN, 0, 0.3, seed=4))
    assert found["best"] is None and found["says"].startswith("No difference seen")


def test_no_difference_is_said_and_who_answers_sooner_all_the_same() -> None:
    alike = evidence(tried(OWN, 0, 0.1), tried(OTHER, 0, 0.1, seed=2), tried(OWN, 0, 0.1, seed=4))
    assert (alike["best"], alike["alike"]) == (None, [])
    assert alike["says"] == "No difference seen: no batching answers more within the objective than the release's own."
    sooner = evidence(tried(OWN, 0, 0), tried(OTHER, 0, 0, seed=2, took_ms=4), tried(OWN, 0, 0, seed=4))
    assert sooner["best"] is None
    assert "; at 96 requests/s max_batch_size 4, max_queue_delay_us 0 answers " in sooner["says"]
    drifting = evidence(tried(OWN, 0, 0), tried(OTHER, 0, 0, seed=2, took_ms=4), tried(OWN, 0, 0, seed=4, took_ms=8))
    assert drifting["says"] == alike["says"], "its own was sooner too"


def test_a_machine_that_did_not_stay_as_it_was_advises_nothing() -> None:
    found = evidence(tried(OWN, 0, 0.5), tried(OTHER, 0, 0.0), tried(OWN, 0, 0.0, seed=4))
    assert found["best"] is None and "was not the same twice" in found["says"]


def test_a_row_that_was_not_measured_tells_why_and_is_no_candidate() -> None:
    found = evidence(tried(OWN, 0, 0.3), Tried(OTHER, why="load_failed: no memory"), tried(OWN, 0, 0.3, seed=4))
    assert (found["rows"][1]["why"], found["rows"][1]["points"]) == ("load_failed: no memory", [])
    assert found["best"] is None
    assert found["says"].startswith("Nothing is compared: no other batching was measured")
    without = evidence(Tried(OWN, why="not ready"), tried(OTHER, 0, 0), tried(OWN, 0, 0))
    assert without["says"] == "Nothing is compared, as of the release's own batching: not ready."


def test_a_run_that_the_generator_shaped_is_compared_with_nothing() -> None:
    found = evidence(tried(OWN, 0, 0.3), tried(OTHER, 0, 0, limited="it sent less"), tried(OWN, 0, 0.3, seed=4))
    assert found["best"] is None
    assert [one["more_per_s"] for one in found["rows"][1]["points"]] == [None, None]
    assert found["says"].startswith("Nothing is compared: no other batching was measured")


def test_a_rate_at_which_its_own_was_not_compared_with_itself_advises_nothing() -> None:
    again = tried(OWN, 0, 0.3, seed=4)
    limited = replace(again, points=(again.points[0], replace(again.points[1], limited="it sent less")))
    found = evidence(tried(OWN, 0, 0.3), tried(OTHER, 0, 0.0), limited)
    assert found["rows"][1]["points"][1]["more_per_s"]["low"] > 0
    assert found["best"] is None, "nobody knows whether it was the machine"
    assert found["says"] == "Nothing is compared: at 96 requests/s the release's own batching was not measured twice."


def test_a_policy_without_a_sweep_is_what_it_was() -> None:
    plain = parse_policy({"gates": ["capacity"]})
    assert "sweep" not in plain.of("capacity")
    assert parse_policy({"gates": ["capacity"], "capacity": {"sweep": None}}).digest == plain.digest
    asked = parse_policy({"gates": ["capacity"], "capacity": {"sweep": SWEEP}})
    assert asked.digest != plain.digest == parse_policy(plain.document).digest
    assert asked.of("capacity")["sweep"]["of_proven"] == [0.5, 0.9, 1.2]


@pytest.mark.parametrize(
    ("sweep", "field", "says"),
    [
        ({}, "capacity.sweep", "it names no other batching"),
        ({**SWEEP, "budget_s": 60}, "capacity.sweep.budget_s", "6 servers .* at 3 rates leave 2 s for each"),
        ({**SWEEP, "budget_s": 600}, "capacity.sweep.budget_s", "longer than any gate may take"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(sweep: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        parse_policy({"gates": ["capacity"], "capacity": {"sweep": sweep}})
    assert field in [one["field"] for one in refused.value.facts["errors"]]
