"""The e-process against its published vectors, and the properties that make it safe to look at every tick."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calibration.arrays import increments_of, mixed_of
from benchmarks.calibration.vectorised import fixed_sums_of, onset_mixed_of, onset_step_of
from rollouts.core.evidence import (
    GRID,
    ZERO,
    Scatter,
    Side,
    Tolerance,
    Window,
    attempts_to_go,
    fixed_sums,
    increments,
    log_mean,
    mixed,
    onset_mixed,
    onset_prior,
    onset_step,
)
from rollouts.core.step_evidence import Evidence, Part

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


def taken(evidence: Evidence, window: Window, worse: Tolerance = LENIENT, **more) -> Evidence:
    part = Part(window.candidate, window.stable, {"errors": (window.bad_candidate, window.bad_stable)})
    return evidence.after([part], worse=worse, fine=PROMOTE, name="errors", **more)


def summed(windows, tolerance: Tolerance, side: Side) -> tuple[float, ...]:
    each = [increments(Window(*counts), tolerance, side) for counts in windows]
    return tuple(sum(parts) for parts in zip(*each, strict=True))


@pytest.mark.parametrize(("windows", "plain", "lenient", "promote"), VECTORS)
def test_log_evidence_matches_the_published_vectors(windows, plain, lenient, promote) -> None:
    assert mixed(summed(windows, PLAIN, Side.WORSE)) == pytest.approx(plain, abs=1e-6)
    assert mixed(summed(windows, LENIENT, Side.WORSE)) == pytest.approx(lenient, abs=1e-6)
    kept = Evidence()
    for counts in windows:
        kept = taken(kept, Window(*counts))
    assert mixed(kept.point("errors").fine) == pytest.approx(promote, abs=1e-6)
    columns = [np.array(column, dtype=float) for column in zip(*windows, strict=True)]
    for tolerance, expected in ((PLAIN, plain), (LENIENT, lenient)):
        assert float(mixed_of(increments_of(*columns, tolerance, Side.WORSE).sum(axis=0))) == pytest.approx(
            expected, abs=1e-6
        )


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


def test_expected_evidence_over_two_ticks_and_all_onsets_is_at_most_one() -> None:
    """The same for the mixture over onsets, with every outcome of two ticks enumerated."""
    n, base = 6, 0.2
    mass = [math.comb(n, x) * base**x * (1 - base) ** (n - x) for x in range(n + 1)]
    total = 0.0
    for first in np.ndindex(n + 1, n + 1):
        once = onset_step((), increments(Window(first[0], n, first[1], n), PLAIN, Side.WORSE), 1)
        chance = mass[first[0]] * mass[first[1]]
        for second in np.ndindex(n + 1, n + 1):
            twice = onset_step(once, increments(Window(second[0], n, second[1], n), PLAIN, Side.WORSE), 2)
            total += chance * mass[second[0]] * mass[second[1]] * math.exp(onset_mixed(twice, 2))
    assert 0.7 < total <= 1


def test_the_prior_of_onsets_sums_to_one_and_no_evidence_stays_one() -> None:
    spent = 0.0
    for tick in range(1, 5000):
        now, later = onset_prior(tick)
        spent += math.exp(now)
        assert spent + math.exp(later) == pytest.approx(1, abs=1e-9)
    log_m: tuple[float, ...] = ()
    for tick in range(1, 100):
        log_m = onset_step(log_m, ZERO, tick)
        assert onset_mixed(log_m, tick) == pytest.approx(0, abs=1e-9)


def test_the_mixture_over_onsets_is_the_sum_over_every_onset() -> None:
    rng = np.random.default_rng(11)
    steps = [tuple(rng.normal(0, 0.5, len(GRID))) for _ in range(30)]
    log_m: tuple[float, ...] = ()
    for tick, more in enumerate(steps, start=1):
        log_m = onset_step(log_m, more, tick)
    by_onset = [onset_prior(begin)[0] + mixed(np.sum(steps[begin - 1 :], axis=0)) for begin in range(1, len(steps) + 1)]
    expected = np.logaddexp.reduce([*by_onset, onset_prior(len(steps))[1]])
    assert onset_mixed(log_m, len(steps)) == pytest.approx(float(expected), abs=1e-9)


def test_a_late_fault_is_found_though_an_hour_was_healthy() -> None:
    log_m: tuple[float, ...] = ()
    total = np.zeros(len(GRID))
    for tick in range(1, 3601):
        more = increments(Window(0, 10, 0, 90), LENIENT, Side.WORSE)
        log_m, total = onset_step(log_m, more, tick), total + more
    for tick in range(3601, 3661):
        more = increments(Window(2, 10, 0, 90), LENIENT, Side.WORSE)
        log_m, total = onset_step(log_m, more, tick), total + more
    assert onset_mixed(log_m, 3660) > math.log(1e6)
    assert mixed(total) < onset_mixed(log_m, 3660)


counts = st.integers(0, 500)


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200), st.integers(0, 200)),
        min_size=1,
        max_size=8,
    ),
    st.floats(1.0, 3.0),
    st.floats(0.0, 0.1),
    st.sampled_from(list(Side)),
)
@settings(max_examples=150)
def test_scalars_and_arrays_agree(windows, ratio, plus, side) -> None:
    tolerance = Tolerance(ratio, plus)
    windows = [(min(xc, nc), nc, min(xb, nb), nb) for xc, nc, xb, nb in windows]
    columns = [np.array(column, dtype=float) for column in zip(*windows, strict=True)]
    array = increments_of(*columns, tolerance, side)
    log_m: tuple[float, ...] = ()
    log_m_of = np.zeros(len(GRID))
    for tick, counts in enumerate(windows, start=1):
        more = increments(Window(*counts), tolerance, side)
        assert np.allclose(more, array[tick - 1], atol=1e-9)
        log_m, log_m_of = onset_step(log_m, more, tick), onset_step_of(log_m_of, array[tick - 1], tick)
        assert np.allclose(log_m, log_m_of, atol=1e-9)
        assert onset_mixed(log_m, tick) == pytest.approx(float(onset_mixed_of(log_m_of, tick)), abs=1e-9)
        assert mixed(more, 1.7) == pytest.approx(float(mixed_of(array[tick - 1] / 1.7)), abs=1e-9)
    bad, attempts = columns[0], columns[1]
    fixed = [fixed_sums(b, n, 0.03, side) for b, n in zip(bad, attempts, strict=True)]
    assert np.allclose(fixed, fixed_sums_of(bad, attempts, 0.03, side), atol=1e-9)


def test_an_average_of_e_values_is_between_the_least_and_the_most() -> None:
    assert log_mean([1.5]) == pytest.approx(1.5)
    assert log_mean([0.0, math.log(3)]) == pytest.approx(math.log(2))


def test_evidence_survives_json_to_a_millionth_and_goes_on_from_it() -> None:
    kept = Evidence()
    for _ in range(50):
        kept = taken(kept, Window(5, 1000, 9, 9000))
    read = Evidence.from_json(json.loads(json.dumps(kept.to_json())))
    assert read.log_e_worse("errors") == pytest.approx(kept.log_e_worse("errors"), abs=2e-6)
    assert read.ticks == 50 and read.candidate == kept.candidate and read.point("errors").bad_stable == 450
    assert taken(read, Window(9, 10, 0, 90)).log_e_worse("errors") > read.log_e_worse("errors")


def test_evidence_of_an_older_shape_begins_afresh() -> None:
    assert Evidence.from_json({"worse": [0.0] * 8, "fine": [0.0] * 8, "tick": 4, "counts": [1, 2, 3, 4]}) == Evidence()


def test_a_window_without_one_arm_says_nothing_but_counts() -> None:
    for window in (Window(3, 100, 0, 0), Window(0, 0, 5, 100)):
        kept = taken(Evidence(), window)
        assert kept.log_e_worse("errors") == 0.0 and kept.ticks == 0
        assert (kept.candidate, kept.stable) == (window.candidate, window.stable)


def test_without_a_stable_the_candidate_is_held_to_a_fixed_share() -> None:
    bad = fine = Evidence()
    for _ in range(20):
        bad = taken(bad, Window(4, 20, 0, 0), over=0.02)
        fine = taken(fine, Window(0, 20, 0, 0), over=0.02)
    assert bad.log_e_worse("errors") > math.log(1e6)
    assert fine.log_e_worse("errors") < 0


def test_dispersion_tempers_evidence() -> None:
    sums = increments(Window(10, 1000, 9, 9000), PLAIN, Side.WORSE)
    assert 0 < mixed(sums, phi=3.0) < mixed(sums)
    assert mixed(sums, phi=0.2) == mixed(sums)  # never sharpened


COUNTS = st.tuples(st.integers(0, 60), st.integers(1, 200), st.integers(0, 60), st.integers(1, 200))
PHIS = st.tuples(*[st.floats(1, 20)] * 4)


@given(COUNTS, PHIS)
@settings(max_examples=100)
def test_a_scatter_of_the_same_tick_never_gives_more_than_the_one_known_before(counts, phis) -> None:
    window = Window(*counts)
    now = Scatter(*phis).of([window], PLAIN)
    before = Scatter(*phis[:2]).of([window], PLAIN)
    assert all(one <= other + 1e-12 for one, other in zip(now, before, strict=True))


@given(st.floats(1, 20), st.floats(1, 20), st.sampled_from([(0.02, 6, 18), (0.3, 3, 9), (0.1, 12, 2)]))
@settings(max_examples=60)
def test_the_promise_holds_whatever_each_arm_is_divided_by(candidate, stable, case) -> None:
    """The exact expectation over all outcomes of one window whose arms fail alike: never over 1, at any alternative."""
    share, nc, nb = case
    total = np.zeros(len(GRID))
    for xc in range(nc + 1):
        for xb in range(nb + 1):
            chance = math.comb(nc, xc) * math.comb(nb, xb) * share ** (xc + xb) * (1 - share) ** (nc + nb - xc - xb)
            total += chance * np.exp(Scatter(candidate, stable).of([Window(xc, nc, xb, nb)], PLAIN))
    assert np.all(total <= 1 + 1e-12)


def test_gateways_are_compared_each_by_itself() -> None:
    """Where the candidate happens to get more of the worse region, the sums of both would blame it; one by one they do not."""
    bad_region, good_region = Window(100, 1000, 10, 100), Window(1, 100, 10, 1000)
    apart = mixed(Scatter().of([bad_region, good_region], PLAIN))
    summed = mixed(Scatter().of([Window(101, 1100, 20, 1100)], PLAIN))
    assert apart < 0 < summed


def test_a_clump_is_one_event_for_the_arm_that_it_is_in() -> None:
    """Of a candidate that fails in clumps nothing is known of stable's scatter: it keeps its full weight."""
    window = Window(30, 190, 0, 10)
    both, own = (Scatter(30.0, stable).of([window] * 60, PLAIN) for stable in (30.0, 1.0))
    assert mixed(own) > 3 * mixed(both) > 0


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 200),
    st.integers(0, 200),
    st.floats(1.0, 3.0),
    st.floats(0.0, 0.1),
)
@settings(max_examples=200)
def test_more_bad_attempts_of_the_candidate_never_look_better(xc, nc, xb, nb, ratio, plus) -> None:
    xc, xb = min(xc, nc), min(xb, nb)
    tolerance = Tolerance(ratio, plus)
    one = np.array(increments(Window(xc, nc, xb, nb), tolerance, Side.WORSE))
    two = np.array(increments(Window(xc + 1, nc, xb, nb), tolerance, Side.WORSE))
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
    assert attempts_to_go(fixed_sums(0, 400, 0.05, Side.FINE), 400, 1.0, bar) == 0


@given(st.lists(st.floats(-30, 30), min_size=8, max_size=8), st.floats(1, 10), st.floats(0.5, 12))
@settings(max_examples=200)
def test_attempts_to_go_agrees_with_looking_for_it(sums, phi, bar) -> None:
    found = attempts_to_go(sums, 1000, phi, bar)
    if found is None:
        assert mixed([total * 1025 for total in sums], phi) < bar or max(sums) < 0.02
    elif found:
        assert mixed([total * (1 + (found + 1) / 1000) for total in sums], phi) >= bar - 1e-6
        assert mixed([total * (1 + (found - 1.01) / 1000) for total in sums], phi) < bar
