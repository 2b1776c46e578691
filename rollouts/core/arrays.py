"""The evidence of `rollouts.core.evidence` for arrays of simulated runs: each function does what the one without `_of` does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rollouts.core.evidence import GRID, LOG_WEIGHTS, Side, Tolerance, onset_prior

Floats = npt.NDArray[np.float64]


def increments_of(xc: Floats, nc: Floats, xb: Floats, nb: Floats, tolerance: Tolerance, side: Side) -> Floats:
    """`increments` for arrays of windows of one shape; the result has the grid as its last axis.

    Source: the event-split test of Lindon & Malek (arXiv 2011.03567) on the realised split, with an additive tolerance:
    E[A^xc B^xb] is bounded by log(1+u) <= u, and A, B are chosen so that the bound is 0 at the tolerance.
    """
    xc, nc, xb, nb = (np.asarray(count)[..., np.newaxis] for count in (xc, nc, xb, nb))
    can_tell = (nc > 0) & (nb > 0)
    nc, nb = np.where(can_tell, nc, 1.0), np.where(can_tell, nb, 1.0)
    ratio, log_g = tolerance.ratio, side * np.log(GRID)
    log_b = np.log((nc * ratio + nb) / (nc * ratio * np.exp(log_g) + nb))
    log_a = log_g + log_b
    return np.where(can_tell, xc * log_a + xb * log_b - nc * tolerance.plus_frac * np.expm1(log_a), 0.0)


def fixed_sums_of(bad: Floats, attempts: Floats, share: float, side: Side) -> Floats:
    """`fixed_sums` for arrays of one shape; the result has the grid as its last axis."""
    g = GRID**side
    bad, attempts = np.asarray(bad)[..., np.newaxis], np.asarray(attempts)[..., np.newaxis]
    return np.asarray(bad * np.log(g) - attempts * share * (g - 1), dtype=np.float64)


def mixed_of(sums: Floats) -> Floats:
    """`mixed` over the last axis of an array."""
    return np.asarray(np.logaddexp.reduce(LOG_WEIGHTS + sums, axis=-1))


def onset_step_of(log_m: Floats, more: Floats, ticks: int) -> Floats:
    """`onset_step` for arrays of runs that are all at the same tick; the grid is the last axis."""
    begin, _ = onset_prior(ticks)
    return (begin if ticks == 1 else np.logaddexp(log_m, begin)) + more


def onset_mixed_of(log_m: Floats, ticks: int) -> Floats:
    """`onset_mixed` over the last axis of an array."""
    return np.logaddexp(mixed_of(log_m), onset_prior(ticks)[1])


def worse_of(counts: Sequence[Floats], tolerance: Tolerance, before: Sequence[Floats], now: Sequence[Floats]) -> Floats:
    """`Scatter.of` for arrays of single windows: `counts` as `increments_of` takes them, the scatter of (candidate, stable)."""
    xc, nc, xb, nb = counts

    def tempered(phis: Sequence[Floats]) -> Floats:
        return increments_of(xc / phis[0], nc / phis[0], xb / phis[1], nb / phis[1], tolerance, Side.WORSE)

    most = [np.maximum(one, other) for one, other in zip(before, now, strict=True)]
    found = tempered(before)
    has_grown = any((one > other).any() for one, other in zip(most, before, strict=True))
    return np.minimum(found, tempered(most)) if has_grown else found
