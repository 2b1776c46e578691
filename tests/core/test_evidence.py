"""The e-process against its published vectors, and the properties that make it safe to look at every tick."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.core.evidence import (
    Dispersion,
    Evidence,
    Side,
    Tolerance,
    Window,
    attempts_to_go,
    fixed_sums,
    increments,
    mixed,
)

PLAIN = Tolerance()
LENIENT = Tolerance(1.2, 0.001)
PROMOTE = Tolerance(2.0, 0.001)

#: (xc, nc, xb, nb) windows → log E for [ratio 1 | ratio 1.2 + .001 | promote side, ratio 2 + .001].
#: Source: computed apart from this code, from the formula in docs/rollouts.md.
VECTORS = [
    ([(5, 1000, 9, 9000)], 2.239694, 0.639301, -1.330827),
    ([(10, 1000, 9, 9000)], 8.833256, 4.871050, -2.624140),
    ([(1, 1000, 9, 9000)], -0.487447, -1.082566, 0.522713),
    ([(3, 100, 0, 900)], 4.076975, 3.326171, -1.432521),
    ([(3, 100, 0, 0)], 0.0, 0.0, 0.0),
    ([(2, 100, 1, 900), (3, 100, 0, 900)], 6.646339, 5.095109, -1.938331),
]


@pytest.mark.parametrize(("windows", "plain", "lenient", "promote"), VECTORS)
def test_log_evidence_matches_the_published_vectors(windows, plain, lenient, promote) -> None:
    strict = generous = Evidence()
    for tick, counts in enumerate(windows):
        strict = strict.after(tick, Window(*counts), PLAIN, PROMOTE)
        generous = generous.after(tick, Window(*counts), LENIENT, PROMOTE)
    assert mixed(strict.worse) == pytest.approx(plain, abs=1e-6)
    assert mixed(generous.worse) == pytest.approx(lenient, abs=1e-6)
    assert mixed(strict.fine) == pytest.approx(promote, abs=1e-6)


@pytest.mark.parametrize(
    ("nc", "nb", "base", "tolerance", "worse", "fine"),
    [
        (20, 180, 0.05, Tolerance(1.0, 0.0), 0.88735, 0.99067),
        (20, 180, 0.05, Tolerance(1.5, 0.02), 0.81236, 0.96836),
        (5, 5, 0.3, Tolerance(2.0, 0.1), 0.87095, 0.72512),
    ],
)
def test_expected_evidence_at_the_boundary_by_enumeration(nc, nb, base, tolerance, worse, fine) -> None:
    """Sums E over every outcome of one window in which the candidate is exactly at the tolerance: never over 1."""
    share = tolerance.of(base)

    def mass(n: int, p: float) -> list[float]:
        return [math.comb(n, x) * p**x * (1 - p) ** (n - x) for x in range(n + 1)]

    for side, expected in ((Side.WORSE, worse), (Side.FINE, fine)):
        total = sum(
            pc * pb * math.exp(mixed(increments(Window(xc, nc, xb, nb), tolerance, side)))
            for xc, pc in enumerate(mass(nc, share))
            for xb, pb in enumerate(mass(nb, base))
        )
        assert total == pytest.approx(expected, abs=2e-5)
        assert total <= 1


def test_a_tick_taken_in_twice_counts_once() -> None:
    window = Window(3, 100, 0, 900)
    once = Evidence().after(7, window, LENIENT, PROMOTE)
    assert once.after(7, window, LENIENT, PROMOTE) == once
    assert once.after(6, window, LENIENT, PROMOTE) == once
    assert once.after(8, window, LENIENT, PROMOTE).bad_candidate == 6


def test_evidence_survives_json_to_the_last_bit() -> None:
    kept = Evidence().after(1, Window(5, 1000, 9, 9000), LENIENT, PROMOTE)
    assert Evidence.from_json(json.loads(json.dumps(kept.to_json()))) == kept


def test_a_new_step_forgets_the_evidence_but_not_the_tick() -> None:
    fresh = Evidence().after(4, Window(5, 10, 0, 90), LENIENT, PROMOTE).fresh()
    assert mixed(fresh.worse) == pytest.approx(0, abs=1e-12)
    assert fresh.tick == 4 and fresh.candidate == 0


def test_dispersion_tempers_evidence() -> None:
    sums = increments(Window(10, 1000, 9, 9000), PLAIN, Side.WORSE)
    assert 0 < mixed(sums, phi=3.0) < mixed(sums)
    assert mixed(sums, phi=0.2) == mixed(sums)  # never sharpened


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 200),
    st.integers(0, 200),
    st.floats(1.0, 3.0),
    st.floats(0.0, 0.1),
)
@settings(max_examples=200, deadline=None)
def test_more_bad_attempts_of_the_candidate_never_look_better(xc, nc, xb, nb, ratio, plus) -> None:
    xc, xb = min(xc, nc), min(xb, nb)
    tolerance = Tolerance(ratio, plus)
    one = increments(Window(xc, nc, xb, nb), tolerance, Side.WORSE)
    two = increments(Window(xc + 1, nc, xb, nb), tolerance, Side.WORSE)
    assert np.all(np.isfinite(one)) and np.all(two >= one)


def test_fixed_share_has_expectation_below_one_at_the_boundary() -> None:
    n, share = 40, 0.1
    for side in Side:
        total = sum(
            math.comb(n, x) * share**x * (1 - share) ** (n - x) * math.exp(mixed(fixed_sums(x, n, share, side)))
            for x in range(n + 1)
        )
        assert 0.5 < total <= 1


def test_fixed_share_tells_over_from_under() -> None:
    assert mixed(fixed_sums(60, 200, 0.05, Side.WORSE)) > math.log(1000)
    assert mixed(fixed_sums(0, 200, 0.05, Side.FINE)) > math.log(20)
    assert mixed(fixed_sums(10, 200, 0.05, Side.WORSE)) < 1
    assert mixed(fixed_sums(0, 0, 0.05, Side.WORSE)) == pytest.approx(0, abs=1e-12)


def test_attempts_to_go_is_enough_and_not_far_too_many() -> None:
    bar = math.log(20)
    sums = fixed_sums(0, 40, 0.05, Side.FINE)
    more = attempts_to_go(sums, 40, 1.0, bar)
    assert more is not None
    assert mixed(fixed_sums(0, 40 + more, 0.05, Side.FINE)) >= bar
    assert mixed(fixed_sums(0, 40 + more - 3, 0.05, Side.FINE)) < bar
    assert attempts_to_go(fixed_sums(20, 40, 0.05, Side.FINE), 40, 1.0, bar) is None
    assert attempts_to_go(sums, 0, 1.0, bar) is None


def test_dispersion_stays_one_for_independent_errors_and_grows_for_clusters() -> None:
    rng = np.random.default_rng(7)

    def phi(counts: np.ndarray) -> float:
        kept = Dispersion()
        for second, bad in enumerate(counts):
            kept = kept.after(float(second + 1), int(bad), 400, window_s=1.0)
        return Dispersion.from_json(json.loads(json.dumps(kept.to_json()))).phi

    independent = [phi(rng.binomial(400, 0.02, size=60)) for _ in range(40)]
    assert np.mean([p == 1.0 for p in independent]) > 0.9
    clustered = [phi(rng.poisson(1.6, size=60) * 5) for _ in range(40)]
    assert np.mean(clustered) > 4
    assert Dispersion().phi == 1.0
