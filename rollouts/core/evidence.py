"""How sure the counts make us that the candidate is worse than stable, or no worse: an e-process for each side.

An e-value E may be looked at after every tick: if the hypothesis holds, the chance that E *ever* reaches 1/alpha is at
most alpha. So peeking each second costs nothing, and neither do changing load, changing weights, or an incident that
hits both arms alike, because only counts of the same window are compared.

A fault may begin at any tick, so the side that rolls back averages over the tick at which it began (see `onset_step`).
All is kept as eight logarithms for each side and counter. Single windows are plain floats, because the engine judges
thousands of them a second; the functions that end in `_of` do the same for arrays of simulated runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Sums = tuple[float, ...]

#: The alternatives "g times the tolerated ratio" that the evidence is averaged over; the other side takes 1/g.
#: Source: a mixture over the event-split test of Lindon & Malek (arXiv 2011.03567); any fixed grid and weights keep it valid.
#: The weights fall with the square root, so that mild faults weigh more.
GRID: Floats = np.array([1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0])
_LOG_WEIGHTS: Floats = -0.5 * np.log(GRID) - math.log(float(np.sum(GRID**-0.5)))
_WEIGHTS: Sums = tuple(_LOG_WEIGHTS.tolist())
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


@dataclass(frozen=True)
class Window:
    """Bad and all attempts of both arms in the same stretch of time."""

    bad_candidate: int
    candidate: int
    bad_stable: int
    stable: int


# --- what one window says ---------------------------------------------------------------------------------------------


@cache
def _alternatives(ratio: float, side: Side) -> tuple[tuple[float, float], ...]:
    """(ratio * g, log g) for the grid of a side."""
    return tuple((ratio * g**side, side * math.log(g)) for g in GRID.tolist())


def slopes(candidate: float, stable: float, tolerance: Tolerance, side: Side) -> list[tuple[float, float, float]]:
    """For each alternative, what a bad attempt of the candidate and one of stable add to log E, and what all attempts take.

    Empty where an arm had no attempt: such a window says nothing. The same for every counter over these attempts.
    """
    if candidate <= 0 or stable <= 0:
        return []
    at_tolerance, plus = candidate * tolerance.ratio + stable, candidate * tolerance.plus_frac
    out = []
    for ratio, log_g in _alternatives(tolerance.ratio, side):
        log_b = math.log(at_tolerance / (candidate * ratio + stable))
        log_a = log_g + log_b
        out.append((log_a, log_b, plus * math.expm1(log_a) if plus else 0.0))
    return out


def increments(window: Window, tolerance: Tolerance, side: Side) -> Sums:
    """What one window adds to log E for each alternative of the grid; zeros where one arm had no attempt."""
    lines = slopes(window.candidate, window.stable, tolerance, side)
    xc, xb = window.bad_candidate, window.bad_stable
    return tuple([xc * log_a + xb * log_b - drift for log_a, log_b, drift in lines]) or ZERO


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


def fixed_sums(bad: float, attempts: float, share: float, side: Side) -> Sums:
    """The sums of the test against a fixed share: is the arm's bad share over it (WORSE), or under it (FINE)?

    For each g of the grid E = g^bad * exp(-attempts * share * (g - 1)). E[g^bad] is the product of 1 + p_i (g - 1), at
    most exp(sum p_i (g - 1)) because log(1+u) <= u, and that is at most exp(attempts * share * (g - 1)) when every
    p_i is on the hypothesis' side of `share`. So the p_i may change from request to request.
    """
    expected = attempts * share
    return tuple([bad * log_g - expected * (g - 1) for g, log_g in _alternatives(1.0, side)])


def fixed_sums_of(bad: Floats, attempts: Floats, share: float, side: Side) -> Floats:
    """`fixed_sums` for arrays of one shape; the result has the grid as its last axis."""
    g = GRID**side
    bad, attempts = np.asarray(bad)[..., np.newaxis], np.asarray(attempts)[..., np.newaxis]
    return np.asarray(bad * np.log(g) - attempts * share * (g - 1), dtype=np.float64)


# --- all windows together ---------------------------------------------------------------------------------------------


def mixed(sums: Sequence[float], phi: float = 1.0) -> float:
    """log E: the mixture over the grid of the evidence to the power 1/phi.

    `phi` >= 1 tempers clustered counts. Any phi keeps the promise, even one chosen from the data: E^(1/phi) <= 1 + E, so
    the false-alarm chance is at most alpha / (1 - alpha).
    """
    less = 1 / max(1.0, phi)
    return log_sum([weight + less * total for weight, total in zip(_WEIGHTS, sums, strict=True)])


def mixed_of(sums: Floats) -> Floats:
    """`mixed` over the last axis of an array."""
    return np.asarray(np.logaddexp.reduce(_LOG_WEIGHTS + sums, axis=-1))


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


def onset_step_of(log_m: Floats, more: Floats, ticks: int) -> Floats:
    """`onset_step` for arrays of runs that are all at the same tick; the grid is the last axis."""
    begin, _ = onset_prior(ticks)
    return (begin if ticks == 1 else np.logaddexp(log_m, begin)) + more


def onset_mixed_of(log_m: Floats, ticks: int) -> Floats:
    """`onset_mixed` over the last axis of an array."""
    return np.logaddexp(mixed_of(log_m), onset_prior(ticks)[1])


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


class Point(NamedTuple):
    """One counter's evidence: log M of the side that rolls back, plain sums of the side that promotes, and what was bad."""

    worse: Sums = ()  # until the first window that says something
    fine: Sums = ZERO
    bad_candidate: int = 0
    bad_stable: int = 0

    def to_json(self) -> list[Any]:
        return [_rounded(self.worse), _rounded(self.fine), self.bad_candidate, self.bad_stable]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Point:
        worse, fine, bad_candidate, bad_stable = value
        return cls(tuple(worse), tuple(fine), bad_candidate, bad_stable)


class Tempering(NamedTuple):
    """The dispersion of a counter before this tick, and with it."""

    before: float = 1.0
    now: float = 1.0

    def of(self, more: Iterable[float]) -> Sums:
        """Increments to the power 1/phi. What speaks against the candidate is trusted no more than either phi allows.

        So the result is never over what the phi known before the tick gives, whose expectation is at most 1 (Jensen):
        a phi that a clump has only just revealed may temper that clump's own tick, and the promise holds.
        """
        most, before = max(self.before, self.now), self.before
        return tuple([one / most if one > 0 else one / before for one in more])

    @staticmethod
    def of_arrays(more: Floats, before: Floats, now: Floats) -> Floats:
        """`of` for arrays of runs; the grid is the last axis of `more`."""
        most = np.maximum(before, now)
        return np.where(more > 0, more / most[..., np.newaxis], more / before[..., np.newaxis])


PLAIN = Tempering()


@dataclass(frozen=True)
class Evidence:
    """What one step's windows say of one guard: the counters at its points, over the same attempts.

    `ticks` counts the windows in which both arms (or, without a stable, the candidate) had attempts.
    """

    points: Mapping[str, Point] = field(default_factory=dict)
    candidate: int = 0
    stable: int = 0
    ticks: int = 0

    def after(
        self,
        bad: Mapping[str, tuple[int, int]],
        candidate: int,
        stable: int,
        *,
        worse: Tolerance,
        fine: Tolerance,
        tempering: Mapping[str, Tempering] | None = None,
        over: float | None = None,
    ) -> Evidence:
        """With one tick's window in it: `bad` names, for each point, the bad attempts of the candidate and of stable.

        Without a stable the candidate is held to the fixed share `over` instead of to `worse`.
        """
        lines = slopes(candidate, stable, worse, Side.WORSE)
        fine_lines = slopes(candidate, stable, fine, Side.FINE)
        says = bool(lines) if over is None else candidate > 0
        ticks, points = self.ticks + says, {}
        for name, (xc, xb) in bad.items():
            old = self.points.get(name, _NOTHING)
            log_m, sums = old.worse, old.fine
            if says:
                more = (
                    [xc * log_a + xb * log_b - drift for log_a, log_b, drift in lines]
                    if over is None
                    else fixed_sums(xc, candidate, over, Side.WORSE)
                )
                log_m = onset_step(log_m, (tempering or {}).get(name, PLAIN).of(more), ticks)
            if fine_lines:
                sums = tuple([s + xc * a + xb * b - d for s, (a, b, d) in zip(sums, fine_lines, strict=True)])
            points[name] = Point(log_m, sums, old.bad_candidate + xc, old.bad_stable + xb)
        return Evidence(points, self.candidate + candidate, self.stable + stable, ticks)

    def point(self, name: str) -> Point:
        """One counter's evidence; nothing known where it never counted."""
        return self.points.get(name, _NOTHING)

    def log_e_worse(self, name: str) -> float:
        """The evidence of one counter that the candidate is worse, or over the fixed share, whenever that began."""
        return onset_mixed(self.point(name).worse, self.ticks)

    def to_json(self) -> dict[str, Any]:
        points = {name: point.to_json() for name, point in self.points.items()}
        return {"points": points, "counts": [self.candidate, self.stable, self.ticks]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Evidence:
        """Nothing known for a state of another shape: evidence begins afresh."""
        if "points" not in value:
            return cls()
        points = {name: Point.from_json(point) for name, point in value["points"].items()}
        return cls(points, *value["counts"])


_NOTHING = Point()


def _rounded(sums: Sequence[float]) -> list[float]:
    return [round(one, 6) for one in sums]
