"""The hierarchy of time-outs: an inner one that is longer than an outer one is a mistake, told where it was written."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.timeouts import against_objectives, of_objectives, of_releases


@pytest.mark.parametrize(
    ("objectives", "fields"),
    [
        ({}, []),
        ({"timeout_s": 2, "attempt_timeout_s": 2}, []),
        ({"timeout_s": 2, "attempt_timeout_s": 2.5}, ["objectives.attempt_timeout_s"]),
        ({"slow": {"threshold_ms": 10_000}}, []),  # the installation's own time-outs are not known here
        ({"attempt_timeout_s": 1, "slow": {"threshold_ms": 999}}, []),
        ({"attempt_timeout_s": 1, "slow": {"threshold_ms": 1000}}, ["objectives.slow.threshold_ms"]),
        ({"timeout_s": 3, "slow": {"threshold_ms": 3000}}, ["objectives.slow.threshold_ms"]),
        ({"timeout_s": 3, "attempt_timeout_s": 1, "slow": {"threshold_ms": 2000}}, ["objectives.slow.threshold_ms"]),
    ],
)
def test_a_models_own_objectives(objectives: dict[str, Any], fields: list[str]) -> None:
    assert [one.field for one in of_objectives(objectives)] == fields


def latency(p99: float) -> dict[str, Any]:
    return {"performance": [{"latency_ms": {"p50": 1}}, {"latency_ms": {"p99": p99}}]}


def full(*, most: int, **rates: float) -> dict[str, Any]:
    shapes = [{"throughput": {"unit": unit, "value": value}} for unit, value in rates.items()]
    return {"limits": {"max_concurrency": most}, "performance": shapes}


@pytest.mark.parametrize(
    ("serving", "envelope", "objectives", "fields"),
    [
        ({}, latency(10**6), {}, []),
        ({"queue_policy": None}, latency(999), {"attempt_timeout_s": 1}, []),
        ({}, latency(1000), {"attempt_timeout_s": 1}, ["envelope.performance[1].latency_ms.p99"]),
        ({}, latency(1000), {"attempt_timeout_s": 2, "timeout_s": 1}, ["envelope.performance[1].latency_ms.p99"]),
        ({"queue_policy": {"default_timeout_us": 0}}, {}, {"timeout_s": 1}, []),  # it has none
        ({"queue_policy": {"default_timeout_us": 999_999}}, {}, {"timeout_s": 1}, []),
        (
            {"queue_policy": {"default_timeout_us": 1_000_000}},
            {},
            {"timeout_s": 1},
            ["serving.queue_policy.default_timeout_us"],
        ),
        # What the queue lets in at the last moment must still be answered in time, at the lightest load that is declared.
        ({"queue_policy": {"default_timeout_us": 700_000}}, latency(299), {"attempt_timeout_s": 1}, []),
        (
            {"queue_policy": {"default_timeout_us": 700_000}},
            latency(300),
            {"attempt_timeout_s": 1},
            ["serving.queue_policy.default_timeout_us"],
        ),
        (
            {"queue_policy": {"default_timeout_us": 700_000}},
            {"performance": [{"latency_ms": {"p99": 299}}, {"latency_ms": {"p99": 999}}]},
            {"attempt_timeout_s": 1},
            [],
        ),
        # Who is only put behind others is never given up.
        (
            {"queue_policy": {"default_timeout_us": 1, "timeout_action": "delay"}},
            {},
            {"attempt_timeout_s": 1},
            ["serving.queue_policy.timeout_action"],
        ),
        ({"queue_policy": {"default_timeout_us": 0, "timeout_action": "delay"}}, {}, {"attempt_timeout_s": 1}, []),
        ({}, full(most=99, requests_per_s=100), {"attempt_timeout_s": 1}, []),
        ({}, full(most=100, requests_per_s=100), {"attempt_timeout_s": 1}, ["envelope.limits.max_concurrency"]),
        ({}, full(most=100, items_per_s=1), {"attempt_timeout_s": 1}, []),  # how many items a request has is not told
    ],
)
def test_what_a_release_declares_against_its_models_objectives(
    serving: dict[str, Any], envelope: dict[str, Any], objectives: dict[str, Any], fields: list[str]
) -> None:
    assert [one.field for one in against_objectives(serving, envelope, objectives)] == fields


def test_the_mistake_says_both_times_and_what_to_do() -> None:
    (one,) = against_objectives({"queue_policy": {"default_timeout_us": 3_000_000}}, {}, {"attempt_timeout_s": 2})
    assert "may wait 3 s in the server's queue" in one.message and "gives it up after 2 s" in one.message
    assert one.fix.startswith("Let the queue give up first")


SLOW = ("r7 (stable in production)", {"serving": {}, "envelope": latency(900)})


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"attempt_timeout_s": 1}, 0),
        ({}, {"attempt_timeout_s": 0.9}, 1),
        ({"attempt_timeout_s": 0.5}, {"attempt_timeout_s": 0.6}, 0),  # it was so before, and gets no worse
        ({"attempt_timeout_s": 0.5}, {"attempt_timeout_s": 0.5, "errors_max_frac": 0.1}, 0),
    ],
)
def test_new_objectives_against_the_releases_in_use(before: dict[str, Any], after: dict[str, Any], told: int) -> None:
    found = of_releases([SLOW, ("r8", {})], before, after)
    assert [one.field for one in found] == ["objectives"] * told
    assert all("r7 (stable in production)" in one.message and "latency_ms.p99" in one.message for one in found)
