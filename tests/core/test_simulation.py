"""Seeded simulations: what the statistics promise is kept, and what a plain threshold would do instead is shown beside it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.false_rollbacks import e_process_alarms, naive_alarms, simulate, whole_rollout
from rollouts.core.dispersion import Dispersions
from rollouts.core.evidence import (
    GRID,
    Side,
    Tempering,
    Tolerance,
    increments_of,
    mixed_of,
    onset_mixed_of,
    onset_step_of,
)

RUNS = 1000


def share(alarms: np.ndarray) -> float:
    return float(np.isfinite(alarms).mean())


@pytest.mark.parametrize("base", [0.001, 0.01])
def test_healthy_releases_are_left_alone_though_looked_at_all_the_time(
    base: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """One hour, 360 looks. Errors are alike in both arms, and nothing is tolerated: the hardest case there is."""
    healthy = simulate(np.random.default_rng(1), RUNS, base=base, candidate=base)
    ours = {alpha: share(e_process_alarms(healthy, Tolerance(), alpha)) for alpha in (0.01, 0.05)}
    naive = share(naive_alarms(healthy))
    with capsys.disabled():
        ours_said = f"e-process {ours[0.01]:.1%} (alpha 1 %), {ours[0.05]:.1%} (alpha 5 %)"
        print(f"\n  false rollbacks at {base:.1%} errors: {ours_said}; naive threshold {naive:.0%}")  # noqa: T201  # shown on purpose
    assert ours[0.01] <= 0.01
    assert ours[0.05] <= 0.05
    assert naive > 0.5


def test_the_promise_holds_exactly_at_the_tolerance_on_both_sides() -> None:
    rng, tolerance, base = np.random.default_rng(2), Tolerance(1.2, 0.001), 0.01
    edge = simulate(rng, RUNS, base=base, candidate=tolerance.of(base))
    assert share(e_process_alarms(edge, tolerance, 0.05)) <= 0.05
    fine = np.cumsum(increments_of(edge.xc, edge.nc, edge.xb, edge.nb, tolerance, Side.FINE), axis=1)
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
    alarms = e_process_alarms(
        simulate(np.random.default_rng(4), 400, base=base, candidate=bad), Tolerance(1.2, 0.001), 0.01
    )
    assert np.median(alarms) <= median_s
    assert share(alarms) == 1.0


def test_whole_rollouts_through_decide_promote_the_healthy_and_stop_the_bad() -> None:
    rng = np.random.default_rng(5)
    assert [whole_rollout(rng, base=0.005, factor=1.0) for _ in range(4)] == ["promote"] * 4
    assert [whole_rollout(rng, base=0.005, factor=10.0) for _ in range(4)] == ["roll_back"] * 4


def test_clustered_errors_are_tempered_and_would_else_be_blamed_on_the_release() -> None:
    """Errors come in clumps of four in both arms alike. Untempered evidence blames the canary far too often."""
    rng, runs, seconds, alpha = np.random.default_rng(6), 300, 240, 0.05
    nc, nb = np.full(runs, 200.0), np.full(runs, 1800.0)
    scatter = Dispersions(runs, 5.0)
    plain, tempered, before = np.zeros((runs, len(GRID))), np.zeros((runs, len(GRID))), np.ones(runs)
    blamed = {"plain": np.zeros(runs, dtype=bool), "tempered": np.zeros(runs, dtype=bool)}
    for second in range(1, seconds + 1):
        xc, xb = rng.poisson(0.5, runs) * 4.0, rng.poisson(4.5, runs) * 4.0
        scatter.absorb(float(second), bad_candidate=xc, candidate=nc, bad_stable=xb, stable=nb)
        if second <= 20:
            continue  # the engine watches stable while the candidate is prepared
        more = increments_of(xc, nc, xb, nb, Tolerance(), Side.WORSE)
        plain, tempered = (
            plain + more,
            onset_step_of(tempered, Tempering.of_arrays(more, before, scatter.phi), second - 20),
        )
        before = scatter.phi
        blamed["plain"] |= mixed_of(plain) >= -np.log(alpha)
        blamed["tempered"] |= onset_mixed_of(tempered, second - 20) >= -np.log(alpha)
    assert blamed["tempered"].mean() <= alpha
    assert blamed["plain"].mean() > 0.2
