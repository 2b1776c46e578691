"""Evidence and dispersion for arrays of simulated runs: each function and class does what the product's does for one run.

Only simulations use these; tests hold them against `rollouts.core.evidence` and `rollouts.core.dispersion`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.arrays import Floats, increments_of, mixed_of
from rollouts.core.dispersion import (
    HISTORY_BAD,
    HISTORY_PHI,
    LEAST_BAD,
    LEAST_BLOCKS,
    LEAST_LONG_BLOCKS,
    LONE_CLUMP,
    MEMORY_S,
    MOST_BY_CHANCE,
    MOST_SECONDS,
    PAIRS,
    SAFETY,
    SIGMAS,
    widths_s,
)
from rollouts.core.evidence import GRID, Side, Tolerance, onset_prior

# --- evidence ---------------------------------------------------------------------------------------------------------


def fixed_sums_of(bad: Floats, attempts: Floats, share: float, side: Side) -> Floats:
    """`fixed_sums` for arrays of one shape; the result has the grid as its last axis."""
    g = GRID**side
    bad, attempts = np.asarray(bad)[..., np.newaxis], np.asarray(attempts)[..., np.newaxis]
    return np.asarray(bad * np.log(g) - attempts * share * (g - 1), dtype=np.float64)


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


# --- dispersion -------------------------------------------------------------------------------------------------------


def factor_of(squares: Floats, bad: Floats, blocks: Floats, most_by_chance: float = math.inf) -> Floats:
    """`factor` for arrays."""
    some = np.maximum(bad, LEAST_BAD)
    by_chance = np.minimum(most_by_chance, SIGMAS * np.sqrt(3 / np.maximum(1.0, blocks))) + PAIRS / some
    excess = squares / some - 1
    return np.asarray(np.where((bad >= LEAST_BAD) & (excess > by_chance), 1 + SAFETY * excess, 1.0))


class SeriesOf:
    """`Series` of one counter, for many runs that are read at the same instants."""

    def __init__(self, runs: int, width_s: float = 1.0, *, has_before: bool = False) -> None:
        self.width_s = width_s
        self.has_before, self.block = np.full(runs, has_before), np.full(runs, -1)
        self.blocks = np.zeros(runs)
        self.squares, self.bad, self.attempts, self.x0, self.n0, self.x1, self.n1 = (np.zeros(runs) for _ in range(7))
        self.largest = np.zeros((2, runs))

    def absorb(self, at: float, bad: Floats, attempts: Floats) -> None:
        """Counts of one more tick."""
        block = int(at // self.width_s)
        is_same = self.block == block
        if is_same.all():
            self.x1, self.n1 = self.x1 + bad, self.n1 + attempts
            return
        has_open = ~is_same & (self.block >= 0)
        self._close(1 - self.width_s / MEMORY_S, has_open & self.has_before)
        self.x0, self.n0 = np.where(has_open, self.x1, self.x0), np.where(has_open, self.n1, self.n0)
        self.has_before = self.has_before | has_open
        self.x1, self.n1 = np.where(is_same, self.x1, 0.0) + bad, np.where(is_same, self.n1, 0.0) + attempts
        self.block = np.full_like(self.block, block)

    def take(self, where: npt.NDArray[np.bool_], other: SeriesOf) -> None:
        """These runs as another one has them."""
        for name, value in vars(other).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, np.where(where, value, getattr(self, name)))

    @property
    def share(self) -> Floats:
        """What of it may weigh as history."""
        return np.minimum(1.0, HISTORY_BAD / np.maximum(self.bad, 1e-9))

    def as_history(self, share: Floats) -> None:
        self.squares = np.minimum(HISTORY_PHI, self.squares / np.maximum(self.bad, 1e-9)) * share * self.bad
        self.bad, self.attempts, self.largest = share * self.bad, share * self.attempts, np.zeros_like(self.largest)
        self.blocks = np.maximum(share * self.blocks, np.minimum(self.blocks, LEAST_LONG_BLOCKS))
        self.block, self.has_before = np.full_like(self.block, -1), np.zeros_like(self.has_before)

    def _close(self, kept: float, where: npt.NDArray[np.bool_]) -> None:
        if not where.any():
            return
        new, largest = self._half_square(), self.largest
        if self.width_s > 1:
            ordered = np.sort(np.vstack([new[np.newaxis], self.largest * kept]), axis=0)
            new, largest = ordered[0], ordered[1:]
        else:
            new = np.minimum(new, self._most())
        self.largest = np.where(where, largest, self.largest)
        self.squares = np.where(where, self.squares * kept + new, self.squares)
        self.bad = np.where(where, self.bad * kept + self.x1, self.bad)
        self.attempts = np.where(where, self.attempts * kept + self.n1, self.attempts)
        self.blocks = np.where(where, self.blocks * kept + 1, self.blocks)

    def _half_square(self) -> Floats:
        seen = self.attempts + self.n0
        share = (self.bad + self.x0) / np.where(seen > 0, seen, 1.0)
        return np.asarray(0.5 * (self.x1 - self.x0 - share * (self.n1 - self.n0)) ** 2)

    def _most(self) -> Floats:
        return np.maximum(LONE_CLUMP**2 / 2, MOST_SECONDS * (self.bad + self.x0) / (self.blocks + 1))

    def phi(self) -> Floats:
        rest = 1 - 2 / np.maximum(self.blocks, 2.0) if self.width_s > 1 else 1.0
        is_known = self.blocks >= (LEAST_LONG_BLOCKS if self.width_s > 1 else LEAST_BLOCKS)
        return np.where(is_known, factor_of(self.squares, self.bad * rest, self.blocks * rest), 1.0)

    def phi_now(self) -> Floats:
        usual = np.where(self.blocks >= LEAST_BLOCKS, self.attempts / np.maximum(self.blocks, 1.0), 0.0)
        surge = np.where(usual > 0, np.maximum(1.0, self.n1 / np.where(usual > 0, usual, 1.0)), 1.0)
        new = np.minimum(self._half_square(), self._most() * surge**2)
        return factor_of(self.squares + new, self.bad + self.x1, self.blocks + 1, MOST_BY_CHANCE)


class Dispersions:
    """`Dispersion` of one counter, for many runs that are read at the same instants."""

    def __init__(self, runs: int, window_s: float) -> None:
        self.candidate = SeriesOf(runs, has_before=True)
        self.stable = [SeriesOf(runs, width) for width in widths_s(window_s)]

    def absorb(
        self, at: float, *, bad_candidate: Floats, candidate: Floats, bad_stable: Floats, stable: Floats
    ) -> None:
        """Counts of one more tick."""
        self.candidate.absorb(at, bad_candidate, candidate)
        for one in self.stable:
            one.absorb(at, bad_stable, stable)

    def take(self, where: npt.NDArray[np.bool_], other: Dispersions) -> None:
        """These runs as another one has them."""
        for mine, one in zip([self.candidate, *self.stable], [other.candidate, *other.stable], strict=True):
            mine.take(where, one)

    def as_history(self, shares: Sequence[Floats]) -> None:
        """What was counted until now is from before the rollout; `shares` by length of block, the least of the guard's counters'."""
        self.candidate = SeriesOf(len(self.candidate.bad), has_before=True)
        for one, share in zip(self.stable, shares, strict=True):
            one.as_history(share)

    @property
    def phis(self) -> tuple[Floats, Floats]:
        """What to divide the candidate's counts and stable's by."""
        usual = np.asarray(np.maximum.reduce([one.phi() for one in self.stable]))
        return np.maximum(self.candidate.phi_now(), usual), usual
