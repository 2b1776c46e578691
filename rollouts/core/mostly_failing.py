"""A candidate that fails more often than not, reading after reading, while stable does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollouts.core.counter_deltas import COMMON, ERRORS, SAVED, Arms

#: A reading goes on with the row where so many of its attempts failed: fewer is another trouble, which evidence tells.
LEAST_FRAC = 0.25
#: Fewer readings may be two halves of one event: one that a reading cut in two is over in the third.
LEAST_READINGS = 3
#: Stable is clearly better when, were all these attempts alike, the candidate would have got so many of the bad ones more seldom. A
#: shared incident is looked at again and again, so this is a tenth of what a row of nothing but failures asks.
CHANCE = 1e-4


@dataclass(frozen=True)
class MostlyFailing:
    """Readings in a row in each of which a quarter or more of the candidate's attempts failed.

    `bad` of `attempts` failed, and of stable's `bad_stable` of `attempts_stable`, in all readings of the row but the first, in whose
    middle the fault may have begun. What fails on stable as well is held against nobody; second attempts are stable's. A reading without
    attempts (the gateway sets a failing server aside for some seconds) neither ends nor extends the row.
    """

    readings: int = 0
    since: float = 0.0  # the first of them, in seconds since the epoch
    until: float = 0.0  # the last of them
    bad: int = 0
    attempts: int = 0
    bad_stable: int = 0
    attempts_stable: int = 0

    def after(self, read_at: float, news: Arms) -> MostlyFailing:
        candidate, stable = news.candidate, news.stable
        common = candidate.bad.get(COMMON, 0)
        bad, attempts = candidate.bad.get(ERRORS, 0) - common, candidate.attempts - common
        if attempts <= 0:
            return self
        if bad < LEAST_FRAC * attempts:
            return MostlyFailing()
        if not self.readings:
            return MostlyFailing(1, read_at, read_at)
        bad_stable, saved = stable.bad.get(ERRORS, 0), candidate.bad.get(SAVED, 0)
        return MostlyFailing(
            self.readings + 1,
            self.since,
            read_at,
            self.bad + bad,
            self.attempts + attempts,
            self.bad_stable + bad_stable + common,
            self.attempts_stable + stable.attempts + saved + common,
        )

    def is_proven(self, *, least_bad: int, over_s: float) -> bool:
        """Whether this is no chance, no single event, and not stable's trouble too.

        More than half failed, `least_bad` or more, at three readings or more that lie further apart than `over_s` seconds; and were the
        attempts of both arms alike, the candidate would have got so many of the bad ones more seldom than `CHANCE`.
        """
        is_row = self.readings >= LEAST_READINGS and self.until - self.since > over_s
        return is_row and self.bad >= least_bad and self.bad * 2 > self.attempts and self.log_chance <= math.log(CHANCE)

    @property
    def log_chance(self) -> float:
        """The logarithm of the chance that the candidate gets `bad` or more of all the bad ones, were all attempts alike.

        Source: the upper tail of the hypergeometric distribution (Fisher's exact test).
        """
        bad, whole = self.bad + self.bad_stable, self.attempts + self.attempts_stable
        terms = [
            _log_comb(bad, x) + _log_comb(whole - bad, self.attempts - x)
            for x in range(self.bad, min(bad, self.attempts) + 1)
        ]
        most = max(terms)
        return most + math.log(sum(math.exp(one - most) for one in terms)) - _log_comb(whole, self.attempts)

    def to_json(self) -> list[float]:
        return [
            self.readings, self.since, self.until, self.bad, self.attempts, self.bad_stable, self.attempts_stable
        ]  # fmt: skip

    @classmethod
    def from_json(cls, value: Sequence[float]) -> MostlyFailing:
        readings, since, until, *counts = value
        return cls(int(readings), since, until, *(int(one) for one in counts))


def _log_comb(of: int, chosen: int) -> float:
    """log of the binomial coefficient; `chosen` is at most `of`."""
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)
