"""The statistic against itself: quiet on traffic that it is made for, loud when an assumption breaks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rollouts.core import selftest as module
from rollouts.core.counting import ERRORS, Counts
from rollouts.core.selftest import SelfTest


def watched(errors: np.ndarray, *, rate: float, seed: str = "model") -> SelfTest:
    """The self-test after one count for each second."""
    rng = np.random.default_rng(1)
    attempts = rng.poisson(rate, len(errors)) + errors
    test = SelfTest(seed=seed)
    for tick, (n, bad) in enumerate(zip(attempts, errors, strict=True), 1):
        test = test.after(tick, 1000.0 + tick, Counts(int(n), int(n), {ERRORS: int(bad)}))
    return test


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPISODE_S", 120.0)


def test_independent_errors_do_not_alarm() -> None:
    rng = np.random.default_rng(3)
    test = watched(rng.poisson(0.5, 12_000), rate=50.0)
    assert test.episodes == pytest.approx(98, abs=3)
    assert test.rejections <= 0.05 * test.episodes + 5 and not test.alarm
    assert test.error_frac == pytest.approx(0.01, abs=0.006)


def test_clumps_within_a_second_do_not_alarm() -> None:
    rng = np.random.default_rng(4)
    test = watched(8 * rng.poisson(0.06, 12_000), rate=50.0)
    assert test.episodes > 90 and not test.alarm


def test_a_statistic_that_does_not_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tempering switched off, clumps are taken for independent errors, and the self-test says so."""
    from rollouts.core.dispersion import Dispersion

    monkeypatch.setattr(Dispersion, "phi", lambda self, name: 1.0)
    rng = np.random.default_rng(5)
    test = watched(8 * rng.poisson(0.06, 12_000), rate=50.0)
    assert test.rejections > 0.2 * test.episodes and test.alarm


def test_seconds_that_are_not_in_a_row_make_no_pair() -> None:
    test = SelfTest()
    for tick in range(1, 20):
        test = test.after(tick, 1000.0 + 10 * tick, Counts(10, 10, {ERRORS: 0}))
    assert test.pairs == 0


def test_the_state_is_small_and_goes_on_from_json() -> None:
    rng = np.random.default_rng(6)
    whole = watched(rng.poisson(0.5, 1000), rate=50.0)
    text = json.dumps(whole.to_json())
    assert len(text) < 6000
    again = SelfTest.from_json(json.loads(text))
    assert (again.episodes, again.rejections, again.alarm) == (whole.episodes, whole.rejections, whole.alarm)
    further = again.after(2001, 2001.0, Counts(50, 50, {ERRORS: 1})).after(2002, 2002.0, Counts(50, 50, {ERRORS: 1}))
    assert further.pairs == whole.pairs + 1 and further.carry.last.candidate.attempts == 50
    assert SelfTest.from_json({}) == SelfTest()
