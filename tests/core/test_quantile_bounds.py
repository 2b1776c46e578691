"""The lower bounds of quantiles: wrong as seldom as they say, and untouched by one stall or by a late generator."""

from __future__ import annotations

import numpy as np
import pytest

from validators.core.load import Attempt, summarise
from validators.core.slo import quantile_bound


def test_a_bound_is_wrong_as_often_as_its_confidence_allows() -> None:
    """Of samples of a known distribution; clumps are not simulated here."""
    dice = np.random.default_rng(7)
    for share in (0.5, 0.95, 0.99):
        true = float(-np.log(1 - share))
        bounds = [
            quantile_bound(dice.exponential(size=200), share, independent=200, confidence=0.95) for _ in range(2000)
        ]
        told = [bound for bound in bounds if bound is not None]
        wrong = sum(bound > true for bound in told) / len(told)
        assert wrong <= 0.065, (share, wrong)
        assert np.mean([bound / true for bound in told]) > 0.6, "and it is no bound that says nothing"


def test_one_stall_of_the_machine_refutes_nothing() -> None:
    """Sixteen requests that wait for one stall are one clump: a server of 20 ms whose envelope declares 40 at p99 is not failed."""
    dice = np.random.default_rng(5)
    failed = 0
    for _ in range(40):
        due = np.sort(dice.uniform(0, 30, 600))
        begins = dice.uniform(2, 27)
        takes = np.where((due >= begins) & (due < begins + 0.9), begins + 0.92 - due, 0.02)
        attempts = [
            Attempt(float(at), float(at), float(at + took), at=n)
            for n, (at, took) in enumerate(zip(due, takes, strict=True))
        ]
        found = summarise(attempts, duration_s=30.0, slo_ms=1000)
        assert found.latency_ms["p99"] > 44
        failed += found.latency_low_ms["p99"] > 44
    assert failed <= 2


def test_a_sample_that_is_too_small_has_no_bound() -> None:
    assert quantile_bound([1.0], 0.5, independent=1, confidence=0.95) is None
    assert quantile_bound([], 0.99, independent=0, confidence=0.95) is None
    assert quantile_bound([3.0, 1.0, 2.0], 0.99, independent=3, confidence=0.95) == 2.0


def test_a_generator_that_sends_late_raises_no_bound() -> None:
    attempts = [Attempt(at / 20, at / 20 + 0.2, at / 20 + 0.21) for at in range(400)]
    found = summarise(attempts, duration_s=20.0, slo_ms=1000)
    assert found.latency_ms["p99"] == pytest.approx(210, abs=1)
    assert found.latency_low_ms["p99"] == pytest.approx(10, abs=1)
