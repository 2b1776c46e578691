"""A candidate that does nothing but fail, and whether stable does better meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollouts.core.counter_deltas import COMMON, ERRORS, SAVED, Arms, Counts
from rollouts.core.two_by_two import log_chance_of_bad_only

#: Stable is clearly better when, were all these attempts alike, the candidate would have got none but bad ones more seldom.
CHANCE = 1e-3
#: A candidate is silent if so many attempts were due by its usual rate and none has ended. After so many seconds it is simply slow.
DUE, SILENT_FOR_S = 3, 10.0


def fails(counts: Counts) -> bool:
    """Whether there were attempts and none of them was good."""
    return counts.attempts > 0 and counts.bad.get(ERRORS, 0) >= counts.attempts


def is_silent(attempts: int, over_s: float, quiet_s: float) -> bool:
    """Whether a candidate that ended `attempts` in `over_s` seconds and none in the `quiet_s` since may hang."""
    return 0 < quiet_s <= SILENT_FOR_S and attempts * quiet_s >= DUE * max(over_s, 1.0)


@dataclass(frozen=True)
class Failures:
    """The candidate's failures in a row, as far as readings can tell; `since` and `until` are the row's first and last reading.

    A reading with a success in it ends the row, since nobody knows what came first. One without attempts, as when the
    gateway has set the server aside, neither ends nor extends it. `own` are those that stable could save, or that had no
    second attempt; `good` and `bad` is what stable made of attempts in the same readings, first ones and, where these are
    told apart, second ones.
    """

    attempts: int = 0
    since: float = 0.0
    until: float = 0.0
    own: int = 0
    good: int = 0
    bad: int = 0

    def after(self, read_at: float, news: Arms) -> Failures:
        candidate, stable = news.candidate, news.stable
        if candidate.attempts and not fails(candidate):
            return Failures()
        if not candidate.attempts and not self.attempts:
            return self
        common, bad = candidate.bad.get(COMMON, 0), stable.bad.get(ERRORS, 0)
        own = candidate.attempts - common
        return Failures(
            self.attempts + candidate.attempts,
            self.since if self.attempts else read_at,
            read_at if candidate.attempts else self.until,
            self.own + own,
            self.good + stable.attempts - bad + candidate.bad.get(SAVED, 0),
            self.bad + bad + common,
        )

    @property
    def spread_s(self) -> float:
        """Seconds between the first and the last reading; 0 for a single one, however many failures it brought."""
        return self.until - self.since

    @property
    def is_stable_better(self) -> bool:
        """Whether stable does clearly better in the same readings."""
        return log_chance_of_bad_only(self.own, self.bad, self.good) <= math.log(CHANCE)

    def to_json(self) -> list[float]:
        return [self.attempts, self.since, self.until, self.own, self.good, self.bad]

    @classmethod
    def from_json(cls, value: Sequence[float]) -> Failures:
        attempts, since, until, *more = value
        return cls(int(attempts), since, until, *(int(one) for one in more))
