"""Requests by size: a class that is slow by itself fails the release, however fast the others are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from validators.core.load import Attempt, judge_load, summarise
from validators.core.policy import parse_policy
from validators.core.request_classes import classes_of, size_of
from validators.core.verdict import Judgement, Verdict


def test_an_items_size_is_its_elements_and_the_bytes_of_its_texts() -> None:
    assert size_of({"ids": np.zeros((3, 2)), "text": np.array([b"ab", "ü".encode()], dtype=object)}) == 10


def test_classes_are_thirds_by_size_where_sizes_differ() -> None:
    assert classes_of([10, 12, 19]) == ["usual"] * 3
    assert classes_of([1, 2, 3, 4, 5, 60]) == ["short", "short", "medium", "medium", "long", "long"]
    assert classes_of([5, 1, 5]) == ["medium", "short", "medium"]


KINDS = ["short"] * 7 + ["longest"]


def judged(took_s: Any, n: int = 480, **load: Any) -> Judgement:
    """Of a run at 20/s; one in eight is of the longest."""
    policy = parse_policy({"load": {"slo_ms": 250, "slo_quantile": 0.8, **load}}).of("load")
    attempts = [Attempt(at / 20, at / 20, at / 20 + took_s(at % 8 == 7), at=at) for at in range(n)]
    return judge_load(summarise(attempts, duration_s=n / 20, slo_ms=250, kinds=KINDS), policy)


def test_a_release_that_is_slow_for_the_longest_alone_fails() -> None:
    """One in eight is slow where one in five may be."""
    found = judged(lambda longest: 1.0 if longest else 0.01)
    assert found.verdict is Verdict.FAILED
    assert found.reason.startswith(
        "Of the class longest 20 of 20 requests were over 250 ms and at most 20.00% may be of each"
    )
    assert "Of all, 47 of 380 requests" in found.reason
    assert judged(lambda longest: 0.1).verdict is Verdict.PASSED


def test_each_class_has_its_own_numbers() -> None:
    found = judged(lambda longest: 0.2 if longest else 0.01)
    by_name = {one["name"]: one for one in found.evidence["classes"]}
    assert set(by_name) == {"short", "longest"}
    assert by_name["longest"]["latency_ms"] == pytest.approx({"p50": 200, "p95": 200, "p99": 200})
    assert (by_name["longest"]["requests"], by_name["short"]["requests"]) == (60, 420)
    assert by_name["longest"]["goodput_per_s"] == 2.5 and by_name["short"]["goodput_per_s"] == 17.5
    assert by_name["short"]["over_frac_at_most"] < by_name["longest"]["over_frac_at_most"] < 0.2
    assert "over_per_window" not in by_name["short"]


def test_requests_of_one_class_are_not_told_apart() -> None:
    attempts = [Attempt(at / 20, at / 20, at / 20 + 0.01, at=at) for at in range(200)]
    assert summarise(attempts, duration_s=10, slo_ms=250, kinds=["usual"] * 64).classes == ()
