"""Stable's last minute for many runs at once: what `rollouts.core.stable_minute` keeps of one. Arrays are by run."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.arrays import mixed_of
from benchmarks.calibration.vectorised import Dispersions, fixed_sums_of
from rollouts.core.evidence import Side
from rollouts.core.stable_minute import CALM_S, LASTING_PARTS, NEWEST, OVER_LOG_E, PART_S, PARTS

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]


class Minutes:
    """`StableMinute`. `calm` are the dispersions of the guard's points; `own` is the place of the guard's own counter among them."""

    def __init__(self, runs: int, limit: float, own: int, dispersions: list[Dispersions]) -> None:
        self.limit, self._own, self._part = limit, own, -1
        self._bad, self._attempts = np.zeros((PARTS, runs)), np.zeros((PARTS, runs))
        self.is_over, self.has_lasted = np.zeros(runs, dtype=np.bool_), np.zeros(runs, dtype=np.bool_)
        self.calm = deepcopy(dispersions)
        self._calm_at, self._phi = np.full(runs, -np.inf), np.ones(runs)

    def absorb(self, at: float, bad: Floats, attempts: Floats, dispersions: list[Dispersions]) -> Booleans:
        """With one tick's counts of stable; the runs in which an incident ends."""
        self._count(int(at // PART_S), bad, attempts)
        all_bad, whole = self._bad.sum(axis=0), self._attempts.sum(axis=0)
        is_high = np.asarray(all_bad > self.limit * whole)
        is_proven = np.zeros_like(is_high)
        if is_high.any():
            sums = fixed_sums_of(all_bad[is_high], whole[is_high], self.limit, Side.WORSE)
            is_proven[is_high] = mixed_of(sums / self._phi[is_high, None]) >= OVER_LOG_E
        high_parts = self._bad > self.limit * self._attempts
        had_lasted = self.has_lasted
        self.is_over = is_proven | (self.is_over & is_high)
        self.has_lasted = self.is_over & (had_lasted | (high_parts.sum(axis=0) >= LASTING_PARTS))
        is_first = np.isneginf(self._calm_at)
        is_calm = ~is_high & ~high_parts[-NEWEST:].any(axis=0)
        self._keep(at, ~had_lasted & (at - self._calm_at >= CALM_S) & (is_calm | is_first), dispersions)
        return had_lasted & ~self.is_over

    def _count(self, part: int, bad: Floats, attempts: Floats) -> None:
        if part != self._part:
            passed = min(PARTS, part - self._part) if self._part >= 0 else PARTS
            empty = np.zeros((passed, self._bad.shape[1]))
            self._bad = np.concatenate([self._bad[passed:], empty])
            self._attempts = np.concatenate([self._attempts[passed:], empty])
            self._part = part
        self._bad[-1] += bad
        self._attempts[-1] += attempts

    def _keep(self, at: float, where: Booleans, dispersions: list[Dispersions]) -> None:
        if where.any():
            for kept, one in zip(self.calm, dispersions, strict=True):
                kept.take(where, one)
            self._calm_at = np.where(where, at, self._calm_at)
            self._look()

    def as_history(self, shares: list[Floats]) -> None:
        for one in self.calm:
            one.as_history(shares)
        self._look()

    def _look(self) -> None:
        self._phi = self.calm[self._own].phis[1]
