"""How sure the counts make us that the candidate is worse than stable, or no worse: an e-process for each side.

An e-value E may be looked at after every tick: if the hypothesis holds, the chance that E *ever* reaches 1/alpha is at
most alpha. So peeking each second costs nothing, and neither do changing load, changing weights, or an incident that
hits both arms alike, because only counts of the same window are compared.

A fault may begin at any tick, so the side that rolls back averages over the tick at which it began (see `onset_step`).
All is kept as eight logarithms for each side and counter. Single windows are plain floats, because the engine judges
thousands of them a second; `benchmarks.calibration.vectorised` does the same for arrays of simulated runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Sums = tuple[float, ...]

#: The alternatives "g times the tolerated ratio" that the evidence is averaged over; the other side takes 1/g.
#: Source: a mixture over the event-split test of Lindon & Malek (arXiv 2011.03567); any fixed grid and weights keep it valid.
#: The weights fall with the square root, so that mild faults weigh more.
GRID: Floats = np.array([1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0])
LOG_WEIGHTS: Floats = -0.5 * np.log(GRID) - math.log(float(np.sum(GRID**-0.5)))
_WEIGHTS: Sums = tuple(LOG_WEIGHTS.tolist())
ZERO: Sums = (0.0,) * len(GRID)

#: The prior weight of a fault that is there from the first tick on. Dearer than a half for late faults, by log 2 at most.
FIRST_ONSET = 0.9
#: The rest falls as 1 / n^2 beyond this many ticks, and is nearly flat before: half an hour at one tick a second.
LATE_TICKS = 1800.0


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


class Window(NamedTuple):
    """Bad and all attempts of both arms at one gateway in the same stretch of time; fractions where they were divided."""

    bad_candidate: float
    candidate: float
    bad_stable: float
    stable: float


# --- what one window says ---------------------------------------------------------------------------------------------


@cache
def _alternatives(ratio: float, side: Side) -> tuple[tuple[float, float, float], ...]:
    """(g, ratio * g, log g) for the grid of a side."""
    return tuple((g**side, ratio * g**side, side * math.log(g)) for g in GRID.tolist())


def increments(window: Window, tolerance: Tolerance, side: Side) -> Sums:
    """What one window adds to log E for each alternative of the grid; zeros where one arm had no attempt.

    Source: the event-split test of Lindon & Malek (arXiv 2011.03567) on the realised split, with an additive tolerance:
    E[A^xc B^xb] is bounded by log(1+u) <= u, and A, B are chosen so that the bound is 0 at the tolerance.
    """
    xc, nc, xb, nb = window
    if nc <= 0 or nb <= 0:
        return ZERO
    at_tolerance, plus = nc * tolerance.ratio + nb, nc * tolerance.plus_frac
    out, log = [], math.log
    for g, ratio, log_g in _alternatives(tolerance.ratio, side):
        b = at_tolerance / (nc * ratio + nb)
        told = plus * (1 - g * b)  # all that a window without a bad attempt says, as most are
        out.append(xc * log_g + (xc + xb) * log(b) + told if xc or xb else told)
    return tuple(out)


def fixed_sums(bad: float, attempts: float, share: float, side: Side) -> Sums:
    """The sums of the test against a fixed share: is the arm's bad share over it (WORSE), or under it (FINE)?

    For each g of the grid E = g^bad * exp(-attempts * share * (g - 1)). E[g^bad] is the product of 1 + p_i (g - 1), at
    most exp(sum p_i (g - 1)) because log(1+u) <= u, and that is at most exp(attempts * share * (g - 1)) when every
    p_i is on the hypothesis' side of `share`. So the p_i may change from request to request.
    """
    expected = attempts * share
    return tuple([bad * log_g - expected * (g - 1) for g, _, log_g in _alternatives(1.0, side)])


# --- all windows together ---------------------------------------------------------------------------------------------


def mixed(sums: Sequence[float], phi: float = 1.0) -> float:
    """log E: the mixture over the grid of the evidence to the power 1/phi.

    `phi` >= 1 tempers clustered counts. Any phi keeps the promise, even one chosen from the data: E^(1/phi) <= 1 + E, so
    the false-alarm chance is at most alpha / (1 - alpha).
    """
    less = 1 / max(1.0, phi)
    return log_sum([weight + less * total for weight, total in zip(_WEIGHTS, sums, strict=True)])


def log_sum(logs: Sequence[float]) -> float:
    """The logarithm of the sum of the exponentials."""
    top, exp = max(logs), math.exp
    return top + math.log(sum([exp(one - top) for one in logs]))


def log_mean(logs: Sequence[float]) -> float:
    """The logarithm of the average of e-values: an e-value again, however they depend on each other."""
    return log_sum(logs) - math.log(len(logs))


def onset_prior(ticks: int) -> tuple[float, float]:
    """The logarithms of the prior weight of a fault that begins at this tick (the first is 1), and of one that begins later."""
    late = 1 - FIRST_ONSET
    after = math.log(late * LATE_TICKS / (LATE_TICKS + ticks - 1))
    if ticks == 1:
        return math.log(FIRST_ONSET), after
    return math.log(late * LATE_TICKS / ((LATE_TICKS + ticks - 2) * (LATE_TICKS + ticks - 1))), after


def onset_step(log_m: Sequence[float], more: Sequence[float], ticks: int) -> Sums:
    """log M after one more tick: M_t(g) = (M_{t-1}(g) + pi_t) * e_t(g), for each g of the grid; `log_m` is empty at first.

    M_t(g) is the sum over s <= t of pi_s times the evidence since tick s. With the weight of the onsets that are yet to
    come it is an average of e-processes (one that begins at s is 1 before s), so itself an e-process: Ville's inequality
    bounds the chance that it ever reaches 1/alpha, for however long a step lasts.

    Source: the Shiryaev-Roberts recursion as an e-detector (Shin, Ramdas & Rinaldo, arXiv 2203.03532), with prior weights
    that sum to 1 in place of 1 each: a bound on false alarms for ever in place of one on the time until the first.
    """
    begin, _ = onset_prior(ticks)
    if not log_m:
        return tuple([begin + one for one in more])
    exp, log1p = math.exp, math.log1p
    return tuple(
        [
            (begin + log1p(exp(before - begin)) if before < begin else before + log1p(exp(begin - before))) + one
            for before, one in zip(log_m, more, strict=True)
        ]
    )


def onset_mixed(log_m: Sequence[float], ticks: int) -> float:
    """log E: the mixture over the grid and over all onsets, those yet to come with evidence 1; 0 before the first tick."""
    if not log_m:
        return 0.0
    _, later = onset_prior(ticks)
    return log_sum([later, *(weight + one for weight, one in zip(_WEIGHTS, log_m, strict=True))])


def attempts_to_go(sums: Sequence[float], attempts: int, phi: float, bar: float) -> int | None:
    """How many more attempts like those so far would bring log E to `bar`; None where they would not within a thousandfold.

    log E of h times the counts is convex in h. From any h beyond the bar, Newton's steps come down to it and never pass it.
    """
    if attempts <= 0:
        return None
    if mixed(sums, phi) >= bar:
        return 0
    rising = [(bar - weight) / total for weight, total in zip(_WEIGHTS, sums, strict=True) if total > 0]
    if not rising:
        return None
    less = 1 / max(1.0, phi)
    times = min(rising) / less
    for _ in range(6):
        parts = [math.exp(weight + times * less * total - bar) for weight, total in zip(_WEIGHTS, sums, strict=True)]
        height = sum(parts)
        slope = less * sum(part * total for part, total in zip(parts, sums, strict=True)) / height
        times -= math.log(height) / slope
    return max(1, math.ceil(attempts * (times - 1))) if times <= 1024 else None


# --- what is kept -----------------------------------------------------------------------------------------------------


class Scatter(NamedTuple):
    """How much the bad attempts of each arm scatter: what the arm's counts are divided by, before this tick and with it.

    With phi >= 1, E[A^(x/phi)] <= exp(n p (A^(1/phi) - 1)) <= exp((n/phi) p (A - 1)), because A^(1/phi) <= 1 + (A-1)/phi
    (Bernoulli's inequality). So the test of counts divided by phi keeps its promise, whatever the two phis are, as long as
    they are known before the tick. A clump of `phi` attempts counts as the one event that it is.
    """

    candidate: float = 1.0
    stable: float = 1.0
    candidate_now: float = 1.0
    stable_now: float = 1.0

    def of(self, windows: Iterable[Window], tolerance: Tolerance) -> Sums:
        """What the windows of one tick add to log E on the side that rolls back, for each alternative of the grid.

        Windows of several gateways are compared each by itself and added up: so it is never to the candidate's account that
        one region fails more than another, or that one gateway follows another weight. A scatter that a clump has only just
        revealed tempers that clump's own tick: the smaller of the two sums is never over the one that was foreseeable.
        """
        windows = list(windows)
        found = self._sums(windows, tolerance, self.candidate, self.stable)
        now = max(self.candidate, self.candidate_now), max(self.stable, self.stable_now)
        if now == (self.candidate, self.stable):
            return found
        return tuple([min(pair) for pair in zip(found, self._sums(windows, tolerance, *now), strict=True)])

    @staticmethod
    def _sums(windows: list[Window], tolerance: Tolerance, candidate: float, stable: float) -> Sums:
        parts = [
            increments(
                Window(
                    one.bad_candidate / candidate,
                    one.candidate / candidate,
                    one.bad_stable / stable,
                    one.stable / stable,
                ),
                tolerance,
                Side.WORSE,
            )
            for one in windows
        ]
        return parts[0] if len(parts) == 1 else added(parts)


PLAIN = Scatter()


def added(parts: Sequence[Sums]) -> Sums:
    """The sum for each alternative of the grid; zeros for none."""
    return tuple([sum(column) for column in zip(*parts, strict=True)]) or ZERO
