"""Rules that other engines use, or that people write, judged on the same traffic as the product.

They test rules, not products: what Argo Rollouts or Flagger decide with defaults like these, on counts without delay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

BIN_S, WINDOW_S = 15, 60
#: One-sided 1 %.
Z_BAR = 2.326
LIMIT_FRAC = 0.01


@dataclass(frozen=True)
class Binned:
    """Counts of (run, quarter minute). `stage` numbers the weights; `is_live` tells whether the rollout was still under way."""

    xc: Floats
    nc: Floats
    xb: Floats
    nb: Floats
    stage: npt.NDArray[np.int64]
    is_live: Booleans


def rivals(binned: Binned) -> dict[str, Floats]:
    """By rule: seconds until it rolls each run back, infinite where it never does."""
    bad = _bad_windows(binned)
    seen = np.cumsum(bad, axis=1)
    row = bad[:, 2:] & bad[:, 1:-1] & bad[:, :-2]
    return {
        "argo_0": _first(seen >= 1, WINDOW_S),
        "argo_3": _first(seen >= 4, WINDOW_S),
        # Flagger takes traffic back at the check after the one that reached the threshold.
        "flagger_5": _first(seen >= 5, WINDOW_S) + WINDOW_S,
        "row_3": _first(row, WINDOW_S) + 2 * WINDOW_S,
        "z_test": _z_test(binned),
    }


def _bad_windows(binned: Binned) -> Booleans:
    """Whole minutes in which more than the limit failed on the canary; none for a minute without an attempt."""
    per = WINDOW_S // BIN_S
    minutes = binned.xc.shape[1] // per

    def summed(counts: Floats) -> Floats:
        return np.asarray(counts[:, : minutes * per].reshape(-1, minutes, per).sum(axis=2))

    is_live = binned.is_live[:, per - 1 : minutes * per : per]
    return np.asarray((summed(binned.xc) > LIMIT_FRAC * summed(binned.nc)) & is_live)


def _z_test(binned: Binned) -> Floats:
    """Two proportions, pooled, looked at every quarter minute once the weight has stood for a minute; afresh at every weight."""
    looks = binned.xc.shape[1]
    sums = np.zeros((4, binned.xc.shape[0]))
    age = np.zeros(binned.xc.shape[0])
    fired = np.zeros((binned.xc.shape[0], looks), dtype=np.bool_)
    counts = np.stack([binned.xc, binned.nc, binned.xb, binned.nb])
    for i in range(looks):
        is_new = (binned.stage[:, i] != binned.stage[:, i - 1]) if i else np.zeros(len(age), dtype=np.bool_)
        sums = np.where(is_new, 0.0, sums) + counts[:, :, i]
        age = np.where(is_new, 0.0, age) + BIN_S
        fired[:, i] = (_z_of(*sums) >= Z_BAR) & (age >= WINDOW_S) & binned.is_live[:, i]
    return _first(fired, BIN_S)


def _z_of(xc: Floats, nc: Floats, xb: Floats, nb: Floats) -> Floats:
    """0 where an arm has no attempts or nothing failed."""
    nc, nb = np.maximum(nc, 1.0), np.maximum(nb, 1.0)
    pooled = np.clip((xc + xb) / (nc + nb), 0.0, 1.0)
    variance = pooled * (1 - pooled) * (1 / nc + 1 / nb)
    return np.asarray(np.where(variance > 0, (xc / nc - xb / nb) / np.sqrt(np.where(variance > 0, variance, 1.0)), 0.0))


def _first(fired: Booleans, every_s: float) -> Floats:
    if fired.shape[1] == 0:
        return np.full(fired.shape[0], np.inf)
    return np.where(fired.any(axis=1), (fired.argmax(axis=1) + 1) * every_s, np.inf)
