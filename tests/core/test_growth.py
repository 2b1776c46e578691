"""Growth for each request: proven where it is in nearly every stretch, and by no step, swing, wandering or warming up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from validators.core.growth import LEAST_READINGS, STRETCHES, growth_of

Floats = npt.NDArray[np.float64]
LIMIT, MIB_IN_100 = 4096.0, 2**20 / 100
CONFIDENCE = 0.975


def level(added: Floats, requests: Floats) -> list[tuple[float, float]]:
    return list(zip(requests.tolist(), (200e6 + added).tolist(), strict=True))


REQUESTS = np.linspace(0, 1000, 80)


def test_a_straight_line_is_found_exactly() -> None:
    found = growth_of(level(100 * REQUESTS, REQUESTS), confidence=CONFIDENCE)
    assert found is not None
    assert (found.per_request, found.low, found.high) == pytest.approx((100, 100, 100))
    assert (found.stretches, found.is_slowing) == (STRETCHES, False)
    assert found.requests == round(1000 - REQUESTS[REQUESTS >= 250][0]) and found.readings == (REQUESTS >= 250).sum()
    (x0, y0), (x1, y1) = found.line
    assert (y1 - y0) / (x1 - x0) == pytest.approx(100)


def steps(dice: np.random.Generator) -> Floats:
    found = np.zeros(80)
    for at in dice.uniform(0, 1000, 3):
        found[at < REQUESTS] += dice.uniform(0.2, 8) * 2**20
    return found


def wandering(dice: np.random.Generator) -> Floats:
    return np.asarray(np.cumsum(dice.normal(0, 2**17, 80)))


def remembering(dice: np.random.Generator) -> Floats:
    found = np.zeros(80)
    for at in range(1, 80):
        found[at] = 0.9 * found[at - 1] + dice.normal(0, 2**17)
    return found


def warming(dice: np.random.Generator) -> Floats:
    return np.asarray(8e6 * (1 - np.exp(-REQUESTS / 200)) + dice.normal(0, 2**16, 80))


@pytest.mark.parametrize("shape", [steps, wandering, remembering, warming])
def test_what_does_not_leak_is_hardly_ever_taken_for_a_leak_and_a_leak_under_it_is_mostly_found(
    shape: Callable[[np.random.Generator], Floats],
) -> None:
    """100 runs each: at most 2 of 100 are blamed (measured: none, in 500), and at least 70 leaks are found (measured: 86 or more)."""
    dice = np.random.default_rng(7)
    found = [
        [growth_of(level(shape(dice) + leak * REQUESTS, REQUESTS), confidence=CONFIDENCE) for _ in range(100)]
        for leak in (0.0, MIB_IN_100)
    ]
    blamed, caught = (sum(one is not None and one.low > LIMIT and not one.is_slowing for one in row) for row in found)
    assert blamed <= 2 and caught >= 70, (blamed, caught)


def test_one_step_is_no_leak_however_large() -> None:
    found = growth_of(level(np.where(REQUESTS > 600, 1e9, 0.0), REQUESTS), confidence=CONFIDENCE)
    assert found is not None and (found.low, found.high) == (0, 0)


def test_what_grows_ever_more_slowly_is_said_to() -> None:
    slow = growth_of(level(8e6 * (1 - np.exp(-REQUESTS / 300)), REQUESTS), confidence=CONFIDENCE)
    assert slow is not None and slow.low > LIMIT / 4 and slow.is_slowing


def test_the_bounds_are_as_sure_as_was_asked() -> None:
    """Nine stretches: a bound may leave one out at .975 (the chance is 10/512), none at .99, and at .999 there is no bound."""
    dice = np.random.default_rng(3)
    points = level(dice.normal(0, 2**18, 80), REQUESTS)
    usual, sure = (growth_of(points, confidence=confidence) for confidence in (0.975, 0.99))
    assert usual is not None and sure is not None
    assert sure.low < usual.low < 0 < usual.high < sure.high
    assert growth_of(points, confidence=0.999) is None
    misses = 0
    for _ in range(400):
        found = growth_of(level(dice.normal(0, 2**18, 80), REQUESTS), confidence=CONFIDENCE)
        misses += found is not None and not found.low <= 0 <= found.high
    assert misses <= 0.05 * 400


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(0.0, 1.0)] * LEAST_READINGS,  # no request came
        [(float(at), 1.0) for at in range(LEAST_READINGS)],  # a quarter of them is warm-up
    ],
)
def test_too_little_is_nothing(points: list[tuple[float, float]]) -> None:
    assert growth_of(points, confidence=CONFIDENCE) is None


def test_just_enough_is_enough() -> None:
    points = [(float(at), 1.0) for at in range(27)]  # 20 of them at 6.5 or later
    found = growth_of(points, confidence=CONFIDENCE)
    assert found is not None and (found.low, found.high, found.readings) == (0, 0, LEAST_READINGS)
    assert growth_of(points[:-1], confidence=CONFIDENCE) is None
