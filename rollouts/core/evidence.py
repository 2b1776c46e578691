"""How sure the counts make us that the candidate is worse than stable, or no worse: an e-process for each side.

An e-value E may be looked at after every tick: if the hypothesis holds, the chance that E *ever* reaches 1/alpha is at
most alpha. So peeking each second costs nothing, and neither do changing load, changing weights, or an incident that
hits both arms alike, because only counts of the same window are compared.

Everything here is kept as the sums from which log E follows, so that a tick adds eight numbers for each side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: The alternatives "g times the tolerated ratio" that the evidence is averaged over; the other side takes 1/g.
#: Source: a mixture over the event-split test of Lindon & Malek (arXiv 2011.03567); any fixed grid and weights keep it valid.
#: The weights fall with the square root, so that mild faults weigh more.
GRID: Floats = np.array([1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0])
_LOG_WEIGHTS: Floats = -0.5 * np.log(GRID) - math.log(float(np.sum(GRID**-0.5)))
ZERO = (0.0,) * len(GRID)


class Side(IntEnum):
    """WORSE collects evidence against "no worse than tolerated"; FINE against "worse than tolerated"."""

    WORSE = 1
    FINE = -1


@dataclass(frozen=True)
class Tolerance:
    """A candidate's bad share is tolerated up to `ratio` times the reference's, plus `plus_frac` (a share in [0, 1])."""

    ratio: float = 1.0
    plus_frac: float = 0.0

    def of(self, share: float) -> float:
        return min(1.0, self.ratio * share + self.plus_frac)


@dataclass(frozen=True)
class Window:
    """Bad and all attempts of both arms in the same stretch of time."""

    bad_candidate: int
    candidate: int
    bad_stable: int
    stable: int


def increments(window: Window, tolerance: Tolerance, side: Side) -> Floats:
    """What one window adds to log E for each alternative of the grid; zeros where one arm had no attempt."""
    xc, nc, xb, nb = np.array(
        [window.bad_candidate, window.candidate, window.bad_stable, window.stable], dtype=np.float64
    )
    return increments_of(xc, nc, xb, nb, tolerance, side)


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


def mixed(sums: Sequence[float] | Floats, phi: float = 1.0) -> float:
    """log E: the mixture over the grid of the evidence to the power 1/phi.

    `phi` >= 1 tempers clustered counts. Any phi keeps the promise, even one chosen from the data: E^(1/phi) <= 1 + E, so
    the false-alarm chance is at most alpha / (1 - alpha).
    """
    return float(mixed_of(np.asarray(sums, dtype=np.float64) / max(1.0, phi)))


def mixed_of(sums: Floats) -> Floats:
    """`mixed` over the last axis of an array."""
    parts = _LOG_WEIGHTS + sums
    top = np.max(parts, axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.sum(np.exp(parts - top), axis=-1)))


@dataclass(frozen=True)
class Evidence:
    """The running sums of both sides for one guard. `tick` is the last tick taken in, so that none counts twice."""

    worse: tuple[float, ...] = ZERO
    fine: tuple[float, ...] = ZERO
    bad_candidate: int = 0
    candidate: int = 0
    bad_stable: int = 0
    stable: int = 0
    tick: int = -1

    def after(self, tick: int, window: Window, worse: Tolerance, fine: Tolerance) -> Evidence:
        """The evidence with this tick's window in it; unchanged where the tick was taken in before."""
        if tick <= self.tick:
            return self
        return Evidence(
            worse=_added(self.worse, increments(window, worse, Side.WORSE)),
            fine=_added(self.fine, increments(window, fine, Side.FINE)),
            bad_candidate=self.bad_candidate + window.bad_candidate,
            candidate=self.candidate + window.candidate,
            bad_stable=self.bad_stable + window.bad_stable,
            stable=self.stable + window.stable,
            tick=tick,
        )

    def fresh(self) -> Evidence:
        """Nothing known yet, but the tick remembered."""
        return replace(Evidence(), tick=self.tick)

    def to_json(self) -> dict[str, Any]:
        return {
            "worse": list(self.worse),
            "fine": list(self.fine),
            "tick": self.tick,
            "counts": [self.bad_candidate, self.candidate, self.bad_stable, self.stable],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Evidence:
        bad_candidate, candidate, bad_stable, stable = value["counts"]
        return cls(
            tuple(value["worse"]), tuple(value["fine"]), bad_candidate, candidate, bad_stable, stable, value["tick"]
        )


def _added(sums: tuple[float, ...], more: Floats) -> tuple[float, ...]:
    return tuple(float(total) for total in np.asarray(sums) + more)


def fixed_sums(bad: float, attempts: float, share: float, side: Side) -> Floats:
    """The sums of the test against a fixed share: is the arm's bad share over it (WORSE), or under it (FINE)?

    For each g of the grid E = g^bad * exp(-attempts * share * (g - 1)). E[g^bad] is the product of 1 + p_i (g - 1), at
    most exp(sum p_i (g - 1)) because log(1+u) <= u, and that is at most exp(attempts * share * (g - 1)) when every
    p_i is on the hypothesis' side of `share`. So the p_i may change from request to request.
    """
    g = GRID if side is Side.WORSE else 1 / GRID
    return np.asarray(bad * np.log(g) - attempts * share * (g - 1), dtype=np.float64)


def attempts_to_go(sums: Sequence[float] | Floats, attempts: int, phi: float, bar: float) -> int | None:
    """How many more attempts like those so far would bring log E to `bar`; None where they would not within a thousandfold."""
    if attempts <= 0 or mixed(sums, phi) >= bar:
        return 0 if attempts > 0 else None
    so_far = np.asarray(sums, dtype=np.float64)
    low, high = 1.0, 2.0
    while mixed(so_far * high, phi) < bar:
        low, high = high, high * 2
        if high > 1024:
            return None
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if mixed(so_far * middle, phi) >= bar else (middle, high)
    return max(1, math.ceil(attempts * (high - 1)))


#: A dispersion that shows is multiplied by this. Source: measured false alarms fall below nominal at 1.5 (section 2.4).
DISPERSION_SAFETY = 1.5
MIN_WINDOWS = 5.0


#: Each new window takes this much off the weight of the older ones, so that an incident is forgotten after some minutes.
FORGETTING = 0.04


@dataclass(frozen=True)
class Dispersion:
    """How much more the reference arm's bad counts scatter from window to window than independent ones would.

    Kept as sums over finished windows of `window_s` seconds, the older ones weighing less, plus the window that is open.
    """

    windows: float = 0.0
    bad: float = 0.0
    attempts: float = 0.0
    squares: float = 0.0  # sum of bad^2 / attempts
    open_bad: int = 0
    open_attempts: int = 0
    open_since: float = 0.0

    def after(self, at: float, bad: int, attempts: int, *, window_s: float) -> Dispersion:
        """With the counts that ended at `at` (seconds); closes the open window when it is long enough."""
        if self.open_since == 0.0:
            return replace(self, open_since=at, open_bad=bad, open_attempts=attempts)
        grown = replace(self, open_bad=self.open_bad + bad, open_attempts=self.open_attempts + attempts)
        if at - self.open_since < window_s:
            return grown
        if grown.open_attempts == 0:
            return replace(grown, open_since=at)
        kept = 1 - FORGETTING
        return Dispersion(
            windows=self.windows * kept + 1,
            bad=self.bad * kept + grown.open_bad,
            attempts=self.attempts * kept + grown.open_attempts,
            squares=self.squares * kept + grown.open_bad**2 / grown.open_attempts,
            open_since=at,
        )

    @property
    def phi(self) -> float:
        """The factor, at least 1, to divide log evidence by; 1 while the scatter is what chance alone would show.

        Source: Pearson's chi-square over its degrees of freedom, which is the Fano factor for windows of unequal size.
        For independent counts its standard deviation is sqrt(2 / (windows - 1)); two of them over 1 is "shows".
        """
        if self.windows < MIN_WINDOWS or self.bad <= 0:
            return 1.0
        spread = (self.squares * self.attempts / self.bad - self.bad) / (self.windows - 1)
        if spread <= 1 + 2 * math.sqrt(2 / (self.windows - 1)):
            return 1.0
        return DISPERSION_SAFETY * spread

    def to_json(self) -> list[float]:
        return [self.windows, self.bad, self.attempts, self.squares, self.open_bad, self.open_attempts, self.open_since]

    @classmethod
    def from_json(cls, value: list[float]) -> Dispersion:
        windows, bad, attempts, squares, open_bad, open_attempts, since = value
        return cls(windows, bad, attempts, squares, int(open_bad), int(open_attempts), since)
