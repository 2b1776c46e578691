"""A candidate that fails more often than not, reading after reading, while stable does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

from rollouts.core.commands import Command, ForgetReplica
from rollouts.core.counter_deltas import COMMON, ERRORS, SAVED, Arms
from rollouts.core.decision import Code, Decision
from rollouts.core.guard_tracker import CounterNews
from rollouts.core.rules.state import NewStage, RuleState
from rollouts.core.rules.verdicts import FAILING_OVER_S, rollback_decision
from rollouts.core.snapshot import Observed, Snapshot
from rollouts.core.two_by_two import moments

#: Among so many attempts a half may fail by chance where all of fewer would not: so many times the failures of a row without a success.
MOSTLY_TIMES = 2
#: A reading goes on with the row where so many of its attempts failed: fewer is another trouble, which evidence tells.
LEAST_FRAC = 0.25
#: Fewer readings may be two halves of one event: one that a reading cut in two is over in the third.
LEAST_READINGS = 3
#: Longer without an attempt, and what failed before is another event, in seconds. Gateways set a failing server aside for 3 s at first.
MOST_QUIET_S = 5.0
#: By so many standard deviations the candidate has more of the bad attempts than were it like stable, and more than is tolerated: chance
#: alone does that less often than once in ten thousand (normal tail, 3e-5), and a shared incident is looked at again and again.
SIGMAS = 4.0


@dataclass(frozen=True)
class MostlyFailing(RuleState):
    """Readings in a row in each of which a quarter or more of the candidate's attempts failed.

    `bad` of `attempts` failed, and of stable's `bad_stable` of `attempts_stable`, in all readings of the row but the first, in whose
    middle the fault may have begun. What fails on stable as well is held against nobody; second attempts are stable's. A reading without
    attempts (the gateway sets a failing server aside for some seconds) neither ends nor extends the row.

    `excess` are the candidate's bad attempts beyond its share of all attempts, and `variance` is that number's, were both arms alike:
    summed over gateways and readings, each by itself, so that no region's trouble, and no moment's, is the candidate's. Source: the test
    of Mantel and Haenszel.
    """

    name = "mostly_failing"
    readings: int = 0
    since: float = 0.0  # the first of them, in seconds since the epoch
    until: float = 0.0  # the last of them
    bad: int = 0
    attempts: int = 0
    bad_stable: int = 0
    attempts_stable: int = 0
    excess: float = 0.0
    variance: float = 0.0

    def counted(self, news: CounterNews, *, has_lost: bool) -> Self:
        return self.after(news.read_at, news.settled_parts)

    def entered(self, stage: NewStage) -> Self:
        return type(self)()

    def obeyed(self, command: Command, seen: Observed) -> Self:
        return type(self)() if isinstance(command, ForgetReplica) else self

    def after(self, read_at: float, gateways: Sequence[Arms]) -> Self:
        """With what each gateway counted since the reading before."""
        tables = [_table(one) for one in gateways]
        bad, attempts, bad_stable, attempts_stable = [sum(column) for column in zip(*tables, strict=True)] or [0] * 4
        if attempts <= 0:
            return self
        if bad < LEAST_FRAC * attempts:
            return type(self)()
        if not self.readings or read_at - self.until > MOST_QUIET_S:
            return type(self)(1, read_at, read_at)
        beyond = [moments(*one) for one in tables]
        return type(self)(
            self.readings + 1,
            self.since,
            read_at,
            self.bad + bad,
            self.attempts + attempts,
            self.bad_stable + bad_stable,
            self.attempts_stable + attempts_stable,
            self.excess + sum(excess for excess, _ in beyond),
            self.variance + sum(variance for _, variance in beyond),
        )

    def is_proven(self, *, least_bad: int, over_s: float, tolerated_frac: float) -> bool:
        """Whether this is no chance, no single event, and not stable's trouble too.

        More than half failed, and surely more than the share `tolerated_frac`; `least_bad` or more did, at three readings or more that lie
        further apart than `over_s` seconds; and surely more of them were the candidate's than were both arms alike.
        """
        is_row = self.readings >= LEAST_READINGS and self.until - self.since > over_s
        by_chance = SIGMAS * math.sqrt(self.attempts * tolerated_frac * (1 - tolerated_frac))
        is_much = self.bad * 2 > self.attempts and self.bad - tolerated_frac * self.attempts > by_chance
        return is_row and self.bad >= least_bad and is_much and self.is_stable_better

    @property
    def is_stable_better(self) -> bool:
        """Half an attempt is taken off for counts being whole."""
        return self.excess - 0.5 >= SIGMAS * math.sqrt(self.variance) and self.variance > 0

    def to_json(self) -> list[float]:
        return [round(one, 4) for one in astuple(self)]

    @classmethod
    def from_json(cls, value: Sequence[float]) -> Self:
        readings, since, until, bad, attempts, bad_stable, attempts_stable, excess, variance = value
        counts = int(bad), int(attempts), int(bad_stable), int(attempts_stable)
        return cls(int(readings), since, until, *counts, excess, variance)

    @classmethod
    def from_earlier(cls, stored: Mapping[str, Any]) -> Self:
        return cls.from_json(stored["mostly"]) if "mostly" in stored else cls()


def mostly_failing(s: Snapshot) -> Iterator[Decision]:
    """More than half fails, reading after reading, and stable does not: evidence would take this for a clump for some seconds longer.

    Only beside a stable that gets traffic and keeps to its objective, and beyond the guard's tolerance of its failures.
    """
    judged = next((one for one in s.acting if one.guard.kind.is_failure), None)
    if judged is None or not s.identity.has_stable or s.desired.is_promoting or judged.is_stable_over:
        return
    row, least_bad = s.of(MostlyFailing), MOSTLY_TIMES * s.policy.all_failing_attempts
    tolerated_frac = judged.guard.roll_back_over.of(row.bad_stable / max(1, row.attempts_stable))
    if not row.is_proven(least_bad=least_bad, over_s=FAILING_OVER_S, tolerated_frac=tolerated_frac):
        return
    said = (
        f"{row.bad} of the last {row.attempts} attempts on {s.identity.candidate_name} failed, in {row.readings} readings in a row, and "
        f"{row.bad_stable} of {row.attempts_stable} on {s.identity.stable_name} at the same time."
    )
    yield rollback_decision(s, Code.MOSTLY_FAILING, said, judged)


def _table(one: Arms) -> tuple[int, int, int, int]:
    """Bad and all attempts of the candidate that are held against it, and of stable."""
    candidate, stable = one.candidate, one.stable
    common, saved = candidate.bad.get(COMMON, 0), candidate.bad.get(SAVED, 0)
    bad, bad_stable = candidate.bad.get(ERRORS, 0) - common, stable.bad.get(ERRORS, 0) + common
    return bad, candidate.attempts - common, bad_stable, stable.attempts + saved + common
