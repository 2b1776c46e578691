"""Rows of failing readings, for many runs at once: what `all_failing` and `mostly_failing` of `rollouts.core.rules` keep of one.

Nobody told these runs what became of second attempts. Arrays are by run.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.traffic import ERRORS, Second
from rollouts.core.evidence import Tolerance
from rollouts.core.rules.all_failing import CHANCE
from rollouts.core.rules.mostly_failing import LEAST_FRAC, LEAST_READINGS, MOST_QUIET_S, SIGMAS
from rollouts.core.rules.verdicts import FAILING_OVER_S

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

#: For arrays; a release has few runs at once whose every attempt fails.
_lgamma = np.vectorize(math.lgamma, otypes=[float])


class Failing:
    """`all_failing.Failures`."""

    def __init__(self, runs: int) -> None:
        self.attempts, self.since, self.until, self.good, self.bad = (np.zeros(runs) for _ in range(5))

    def absorb(self, at: float, second: Second) -> None:
        bad, stable_bad = second.bad[ERRORS]
        has, fails = second.candidate > 0, (second.candidate > 0) & (bad >= second.candidate)
        begins = fails & (self.attempts == 0)
        goes_on = fails | (~has & (self.attempts > 0))
        self.attempts = np.where(goes_on, self.attempts + second.candidate, 0.0)
        self.since = np.where(begins, at, np.where(goes_on, self.since, 0.0))
        self.until = np.where(fails, at, np.where(goes_on, self.until, 0.0))
        self.good = np.where(goes_on, self.good + second.stable - stable_bad, 0.0)
        self.bad = np.where(goes_on, self.bad + stable_bad, 0.0)

    def fails(self, attempts: int) -> Booleans:
        return np.asarray((self.attempts >= attempts) & (self.until - self.since > FAILING_OVER_S))

    def is_stable_better(self, where: Booleans) -> Booleans:
        """For the runs that are asked for; False for others."""
        found = where.copy()
        if found.any():
            own, bad, good = self.attempts[found], self.bad[found], self.good[found]
            found[found] = _lgamma(own + bad + 1) - _lgamma(bad + 1) + _lgamma(bad + good + 1) <= (
                _lgamma(own + bad + good + 1) + np.log(CHANCE)
            )
        return found


class MostlyFailings:
    """`mostly_failing.MostlyFailing`, of one gateway."""

    def __init__(self, runs: int) -> None:
        self.readings, self.since, self.until = (np.zeros(runs) for _ in range(3))
        self.bad, self.attempts, self.bad_stable, self.attempts_stable = (np.zeros(runs) for _ in range(4))
        self.excess, self.variance = np.zeros(runs), np.zeros(runs)

    def absorb(self, at: float, second: Second) -> None:
        (bad, bad_stable), attempts, attempts_stable = second.bad[ERRORS], second.candidate, second.stable
        has, is_many = attempts > 0, bad >= LEAST_FRAC * attempts
        begins = has & is_many & ((self.readings == 0) | (at - self.until > MOST_QUIET_S))
        adds, ends = has & is_many & ~begins, has & ~is_many
        self.readings = np.where(ends, 0.0, np.where(begins, 1.0, self.readings + adds))
        self.since = np.where(begins, at, self.since)
        self.until = np.where(has, at, self.until)
        whole, all_bad = np.maximum(2.0, attempts + attempts_stable), bad + bad_stable
        share = np.where((attempts > 0) & (attempts_stable > 0), attempts / whole, np.nan)
        excess = np.nan_to_num(bad - share * all_bad)
        variance = np.nan_to_num(share * (1 - share) * all_bad * (whole - all_bad) / (whole - 1))
        more = {"bad": bad, "attempts": attempts, "bad_stable": bad_stable, "attempts_stable": attempts_stable}
        for name, one in (more | {"excess": excess, "variance": variance}).items():
            known = np.where(begins | ends, 0.0, getattr(self, name))
            setattr(self, name, np.where(adds, known + one, known))

    def are_proven(self, least_bad: int, tolerance: Tolerance) -> Booleans:
        """`MostlyFailing.is_proven` beside stable's share."""
        beside = self.bad_stable / np.maximum(1.0, self.attempts_stable)
        share = np.minimum(1.0, tolerance.ratio * beside + tolerance.plus_frac)
        by_chance = SIGMAS * np.sqrt(self.attempts * share * (1 - share))
        is_better = (self.excess - 0.5 >= SIGMAS * np.sqrt(self.variance)) & (self.variance > 0)
        is_much = (self.bad * 2 > self.attempts) & (self.bad - share * self.attempts > by_chance)
        is_row = (self.readings >= LEAST_READINGS) & (self.until - self.since > FAILING_OVER_S)
        return np.asarray(is_row & (self.bad >= least_bad) & is_much & is_better)

    def forget(self, where: Booleans) -> None:
        """A new weight."""
        self.readings[where] = 0.0
