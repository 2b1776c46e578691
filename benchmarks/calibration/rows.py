"""Rows of failing readings, for many runs at once: what `rollouts.core.all_failing` and `rollouts.core.mostly_failing` keep of one.

Nobody told these runs what became of second attempts. Arrays are by run.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.traffic import ERRORS, Second
from rollouts.core import mostly_failing
from rollouts.core.all_failing import CHANCE
from rollouts.core.evidence import Tolerance
from rollouts.core.mostly_failing import LEAST_FRAC, LEAST_READINGS, MostlyFailing
from rollouts.core.rollback_rules import FAILING_OVER_S

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
    """`mostly_failing.MostlyFailing`."""

    def __init__(self, runs: int) -> None:
        self.readings, self.since, self.until = (np.zeros(runs) for _ in range(3))
        self.bad, self.attempts, self.bad_stable, self.attempts_stable = (np.zeros(runs) for _ in range(4))

    def absorb(self, at: float, second: Second) -> None:
        bad, bad_stable = second.bad[ERRORS]
        has = second.candidate > 0
        goes_on = ~has | (bad >= LEAST_FRAC * second.candidate)
        begins, adds = has & goes_on & (self.readings == 0), has & goes_on & (self.readings > 0)
        self.readings = np.where(goes_on, self.readings + has, 0.0)
        self.since = np.where(begins, at, self.since)
        self.until = np.where(has, at, self.until)
        for name, more in (
            ("bad", bad), ("attempts", second.candidate), ("bad_stable", bad_stable), ("attempts_stable", second.stable)
        ):  # fmt: skip
            known = np.where(goes_on & ~begins, getattr(self, name), 0.0)
            setattr(self, name, np.where(adds, known + more, known))

    def are_proven(self, least_bad: int) -> Booleans:
        """`MostlyFailing.is_proven`; its chance is asked for where all else holds."""
        found = np.asarray(
            (self.readings >= LEAST_READINGS)
            & (self.until - self.since > FAILING_OVER_S)
            & (self.bad >= least_bad)
            & (self.bad * 2 > self.attempts)
        )
        for run in np.flatnonzero(found):
            counts = (self.bad[run], self.attempts[run], self.bad_stable[run], self.attempts_stable[run])
            row = MostlyFailing(int(self.readings[run]), 0.0, 0.0, *(int(one) for one in counts))
            found[run] = row.log_chance <= math.log(mostly_failing.CHANCE)
        return found

    def are_over(self, tolerance: Tolerance) -> Booleans:
        """Whether more fails than is tolerated beside stable's share."""
        share = self.bad / np.maximum(1.0, self.attempts)
        beside = self.bad_stable / np.maximum(1.0, self.attempts_stable)
        return np.asarray(share > np.minimum(1.0, tolerance.ratio * beside + tolerance.plus_frac))
