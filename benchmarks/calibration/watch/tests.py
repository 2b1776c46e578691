"""The tests of `rollouts.core.watch.sequential_test`, for many models at a time; and the rule of the SRE workbook beside them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rollouts.core.watch.sequential_test import TIMES, Tier

Floats = npt.NDArray[np.float64]


class Detector:
    """`Tier.after` and `Tier.is_over` for an array of models; one that is over begins anew."""

    def __init__(self, tier: Tier, limit: float, models: int) -> None:
        p0 = tier.null(limit)
        q = np.array([min(times * p0, (1 + p0) / 2) for times in TIMES])
        self._bad, self._well = np.log(q / p0), np.log((1 - q) / (1 - p0))
        self._cap, self._bar = tier.log_cap, tier.bar
        self.sums = np.zeros((models, len(TIMES)))

    def after(self, bad: npt.NDArray[np.int64], requests: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which models are over the objective after one more bin."""
        logs = bad[:, None] * self._bad + (requests - bad)[:, None] * self._well
        self.sums = (1 + self.sums) * np.exp(np.minimum(self._cap, logs))
        is_over: npt.NDArray[np.bool_] = self.sums.mean(axis=1) >= self._bar
        self.sums[is_over] = 0.0
        return is_over


#: (long window, short window, burn) in bins of 10 s. Source: Google SRE workbook, "Alerting on SLOs", pages for a budget of 30 days.
WORKBOOK = ((360, 30, 14.4), (2160, 180, 6.0))


def first_by_workbook(
    bad: npt.NDArray[np.int64], requests: npt.NDArray[np.int64], limit: float, begin: int
) -> int | None:
    """The first bin from `begin` on in which the workbook's rule pages, for one model."""
    sums = [np.concatenate([[0], np.cumsum(one)]) for one in (bad, requests)]
    fires = np.zeros(len(bad), dtype=bool)
    for long, short, burn in WORKBOOK:
        over = np.ones(len(bad), dtype=bool)
        for window in (long, short):
            ends = np.arange(1, len(bad) + 1)
            starts = np.maximum(0, ends - window)
            failed, asked = (one[ends] - one[starts] for one in sums)
            over &= failed > burn * limit * np.maximum(1, asked)
        fires |= over
    found = np.flatnonzero(fires[begin:])
    return int(found[0]) + begin if len(found) else None
