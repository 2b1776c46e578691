"""Seeded simulations of the formulas by themselves: what the statistics promise is kept, however often one looks.

Whole rollouts, and what other rules would do instead, are simulated by benchmarks/calibration (test_calibration.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibration.arrays import increments_of, mixed_of
from benchmarks.calibration.vectorised import Dispersions, onset_mixed_of, onset_step_of, worse_of
from rollouts.core.evidence import GRID, Side, Tolerance

RUNS, SCRAPE_S, HOUR_S = 1000, 10, 3600
Windows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def simulate(rng: np.random.Generator, runs: int, *, base: float, candidate: float) -> Windows:
    """An hour of independent errors: 10 requests/s on the candidate, 90 on stable, read every 10 s. xc, nc, xb, nb by (run, scrape)."""
    shape = (runs, HOUR_S // SCRAPE_S)
    nc, nb = rng.poisson(10 * SCRAPE_S, shape), rng.poisson(90 * SCRAPE_S, shape)
    xc, xb = rng.binomial(nc, candidate), rng.binomial(nb, base)
    return xc.astype(float), nc.astype(float), xb.astype(float), nb.astype(float)


def alarms_of(windows: Windows, tolerance: Tolerance, alpha: float) -> np.ndarray:
    """Seconds until the e-process crosses 1/alpha, for each run; infinite where it never does."""
    crossed = mixed_of(np.cumsum(increments_of(*windows, tolerance, Side.WORSE), axis=1)) >= -np.log(alpha)
    return np.where(crossed.any(axis=1), (crossed.argmax(axis=1) + 1.0) * SCRAPE_S, np.inf)


def share(alarms: np.ndarray) -> float:
    return float(np.isfinite(alarms).mean())


@pytest.mark.parametrize("base", [0.001, 0.01])
def test_healthy_releases_are_left_alone_though_looked_at_all_the_time(base: float) -> None:
    """One hour, 360 looks. Errors are alike in both arms, and nothing is tolerated: the hardest case there is."""
    healthy = simulate(np.random.default_rng(1), RUNS, base=base, candidate=base)
    assert share(alarms_of(healthy, Tolerance(), 0.01)) <= 0.01
    assert share(alarms_of(healthy, Tolerance(), 0.05)) <= 0.05


def test_the_promise_holds_exactly_at_the_tolerance_on_both_sides() -> None:
    rng, tolerance, base = np.random.default_rng(2), Tolerance(1.2, 0.001), 0.01
    edge = simulate(rng, RUNS, base=base, candidate=tolerance.of(base))
    assert share(alarms_of(edge, tolerance, 0.05)) <= 0.05
    fine = np.cumsum(increments_of(*edge, tolerance, Side.FINE), axis=1)
    assert float((mixed_of(fine) >= -np.log(0.05)).any(axis=1).mean()) <= 0.05


def test_an_incident_of_both_arms_and_a_ramp_of_the_weight_are_nobodys_fault() -> None:
    """Error rates swing tenfold for both arms at once while the canary's share grows: still within alpha."""
    rng, runs, scrapes = np.random.default_rng(3), 800, 360
    p = np.where(rng.random((runs, scrapes)) < 0.1, 0.05, 0.005)
    w = np.repeat([0.01, 0.05, 0.10, 0.25], scrapes // 4)
    nc = rng.poisson(1000 * w, (runs, scrapes))
    nb = rng.poisson(1000 * (1 - w), (runs, scrapes))
    xc, xb = rng.binomial(nc, p), rng.binomial(nb, p)
    sums = np.cumsum(increments_of(*(a.astype(float) for a in (xc, nc, xb, nb)), Tolerance(), Side.WORSE), axis=1)
    assert float((mixed_of(sums) >= np.log(20)).any(axis=1).mean()) <= 0.05


@pytest.mark.parametrize(("base", "bad", "median_s"), [(0.001, 0.01, 120), (0.001, 0.20, 10), (0.01, 0.10, 20)])
def test_bad_releases_are_found_soon(base: float, bad: float, median_s: float) -> None:
    windows = simulate(np.random.default_rng(4), 400, base=base, candidate=bad)
    alarms = alarms_of(windows, Tolerance(1.2, 0.001), 0.01)
    assert np.median(alarms) <= median_s
    assert share(alarms) == 1.0


def test_clustered_errors_are_tempered_and_would_else_be_blamed_on_the_release() -> None:
    """Errors come in clumps of four in both arms alike. Untempered evidence blames the canary far too often."""
    rng, runs, seconds, alpha = np.random.default_rng(6), 300, 240, 0.05
    nc, nb = np.full(runs, 200.0), np.full(runs, 1800.0)
    scatter = Dispersions(runs, 5.0)
    plain, tempered, before = np.zeros((runs, len(GRID))), np.zeros((runs, len(GRID))), [np.ones(runs)] * 2
    blamed = {"plain": np.zeros(runs, dtype=bool), "tempered": np.zeros(runs, dtype=bool)}
    for second in range(1, seconds + 1):
        xc, xb = rng.poisson(0.5, runs) * 4.0, rng.poisson(4.5, runs) * 4.0
        scatter.absorb(float(second), bad_candidate=xc, candidate=nc, bad_stable=xb, stable=nb)
        if second <= 20:
            continue  # the engine watches stable while the candidate is prepared
        more = increments_of(xc, nc, xb, nb, Tolerance(), Side.WORSE)
        less = worse_of((xc, nc, xb, nb), Tolerance(), before, scatter.phis)
        plain, tempered = plain + more, onset_step_of(tempered, less, second - 20)
        before = scatter.phis
        blamed["plain"] |= mixed_of(plain) >= -np.log(alpha)
        blamed["tempered"] |= onset_mixed_of(tempered, second - 20) >= -np.log(alpha)
    assert blamed["tempered"].mean() <= alpha
    assert blamed["plain"].mean() > 0.2
