"""The rate of the load gate: the policy's, or one that the server can hold."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.envelope import declared_per_s
from validators.core.load import Attempt, judge_load, summarise
from validators.core.load_defaults import ERRORS_ONLY_S
from validators.core.load_rate import (
    LEAST_REQUESTS,
    LONGEST_S,
    MEASURING_S,
    RateFrom,
    answered_per_s,
    at_rate,
    probes_of,
    rate_of,
)
from validators.core.policy import parse_policy
from validators.core.proof import sizing
from validators.core.verdict import Verdict


def load(**stated: Any) -> dict[str, Any]:
    return parse_policy({"load": stated}).of("load")


def test_a_stated_rate_is_asked_whatever_the_server_can_do() -> None:
    for declared, measured in ((None, None), (3.0, None), (None, 3.0)):
        found = rate_of(load(rate_per_s=20), declared=declared, measured=measured)
        assert (found.per_s, found.source) == (20, RateFrom.STATED)
    assert found.sentence == "the rate is 20/s, the policy's load.rate_per_s"


@pytest.mark.parametrize(
    ("declared", "measured", "per_s", "source"),
    [
        (None, None, 20, "default"),
        (None, 1000.0, 20, "default"),
        (None, 40.0, 20, "default"),
        (None, 39.0, 19.5, "measured"),
        (None, 8.7, 4.35, "measured"),  # a model that takes 115 ms for one item
        (None, 1 / 60, 1 / 120, "measured"),
        (50.0, None, 20, "default"),
        (8.0, None, 8.0, "declared"),
        (8.0, 2.0, 8.0, "declared"),  # who declares it is held to it
    ],
)
def test_a_rate_that_nobody_stated_is_one_that_the_server_can_do(
    declared: float | None, measured: float | None, per_s: float, source: str
) -> None:
    found = rate_of(load(), declared=declared, measured=measured)
    assert (found.per_s, found.source) == (pytest.approx(per_s), source)
    assert "states no load.rate_per_s" in found.sentence
    assert at_rate(load(), found, errors_only_s=ERRORS_ONLY_S)["rate_per_s"] == found.per_s


def test_a_policy_may_ask_for_the_measured_rate_up_to_one_of_its_own() -> None:
    found = rate_of(load(rate_per_s=5, rate_from="measured"), declared=None, measured=100.0)
    assert (found.per_s, found.source) == (5, RateFrom.DEFAULT)


def test_the_largest_declared_throughput_in_requests_counts() -> None:
    shapes = [
        {"throughput": {"unit": unit, "value": value}}
        for unit, value in (("requests_per_s", 3), ("requests_per_s", 9), ("items_per_s", 99))
    ]
    assert declared_per_s({"performance": [*shapes, {"batch_size": 1}]}) == 9
    assert declared_per_s({}) is declared_per_s({"performance": shapes[2:]}) is None


def test_a_load_that_only_counts_errors_lasts_as_long_as_its_rate_needs() -> None:
    def lasts(measured: float, **stated: Any) -> float:
        policy = load(**stated)
        found = rate_of(policy, declared=None, measured=measured)
        return float(at_rate(policy, found, errors_only_s=ERRORS_ONLY_S)["duration_s"])

    assert lasts(1000.0) == ERRORS_ONLY_S
    assert lasts(2.0) == LEAST_REQUESTS / 1.0
    assert lasts(1 / 60) == LONGEST_S
    assert lasts(2.0, duration_s=3) == 3


def test_an_objective_has_the_time_that_its_proof_needs_at_the_rate() -> None:
    policy = load(slo_ms=500)
    slow = at_rate(policy, rate_of(policy, declared=None, measured=8.0), errors_only_s=ERRORS_ONLY_S)
    assert slow["max_duration_s"] > policy["max_duration_s"] and sizing(slow).seconds < slow["max_duration_s"]
    stated = load(slo_ms=500, max_duration_s=30)
    assert (
        at_rate(stated, rate_of(stated, declared=None, measured=8.0), errors_only_s=ERRORS_ONLY_S)["max_duration_s"]
        == 30
    )


def test_what_a_server_can_do_is_measured_in_some_seconds_or_by_one_request() -> None:
    for first_s in (0.001, 0.02, 0.115, 1.0, 2.5):
        assert probes_of(first_s, at_once=4) * first_s <= 2 * MEASURING_S
    assert probes_of(60.0, at_once=4) == 0
    answers = [Attempt(0, 0, 1.0), Attempt(0, 0, 2.0), Attempt(0, 0, 9.0, "boom")]
    assert answered_per_s(answers) == 1.0 and answered_per_s(answers[2:]) is None


def test_a_failure_states_the_rate_where_it_comes_from_and_what_the_server_did() -> None:
    """The queue of a model that takes 115 ms grows at 20/s, and its last answers come long after the last request."""
    ends = [0.115 * (n + 1) for n in range(160)]
    attempts = [Attempt(n / 20, n / 20, end) for n, end in enumerate(ends[:154])]
    attempts += [Attempt(n / 20, n / 20, n / 20 + 10, "Deadline Exceeded [timeout]") for n in range(154, 160)]
    judged = judge_load(summarise(attempts, duration_s=8, slo_ms=float("inf")), load(rate_per_s=20))
    assert judged.verdict is Verdict.FAILED
    assert judged.reason == (
        "6 of 160 requests failed (3.75%; 0.10% are allowed): Deadline Exceeded [timeout]. The rate is 20/s, the policy's "
        "load.rate_per_s; the server answered 8.7/s."
    )
