"""Evidence over whole arrays, as the preview's forecast needs it: each function does what `evidence`'s without `_of` does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rollouts.core.evidence import GRID, LOG_WEIGHTS, Side, Tolerance

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


def mixed_of(sums: Floats) -> Floats:
    """`mixed` over the last axis of an array."""
    return np.asarray(np.logaddexp.reduce(LOG_WEIGHTS + sums, axis=-1))
