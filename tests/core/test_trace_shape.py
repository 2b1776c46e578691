"""What recorded arrivals are like, on arrivals whose shape is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from validators.core.trace_shape import shape_of

DICE = np.random.default_rng(5)


def test_numbers_by_hand() -> None:
    found = shape_of([1.0, 3.0])
    assert (found.rate_per_s, found.cv, found.longest_gap_s, found.dispersion) == (0.5, 0.5, 3.0, None)
    assert found.words == "too few to tell"


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        (DICE.exponential(0.05, 20_000), "at random"),
        (DICE.exponential(20, 60), "at random"),
        (DICE.gamma(1 / 9, 9, 5000), "in bursts"),
        (DICE.gamma(4, 1, 5000), "evenly"),
        ([1.0] * 1000, "evenly"),
        ([0.01] * 19 + [5.0], "in bursts"),
        ([0.5] * 19, "too few to tell"),
    ],
)
def test_a_shape_is_named(gaps: Sequence[float], words: str) -> None:
    found = shape_of(gaps)
    assert found.words == words


def test_a_rate_that_comes_and_goes_is_no_chance_though_the_gaps_look_so() -> None:
    """Each half is random, and the second comes at half the rate: the gaps' cv is 1.1, the counts tell."""
    gaps = [*DICE.exponential(1, 5000), *DICE.exponential(1.6, 5000)]
    found = shape_of(gaps)
    assert abs(found.cv - 1) < 0.1 and found.dispersion is not None and found.dispersion > 1.2
    assert found.words == "in bursts"


def test_random_arrivals_are_hardly_ever_called_anything_else() -> None:
    named = [shape_of(DICE.exponential(1, count)).words for count in (25, 200, 2000) for _ in range(100)]
    assert named.count("at random") >= 285
