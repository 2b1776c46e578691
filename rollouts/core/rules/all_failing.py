"""A candidate that does nothing but fail, and whether stable does better meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollouts.core.counter_deltas import COMMON, ERRORS, SAVED, Arms, Counts
from rollouts.core.decision import Code, Decision
from rollouts.core.guard_tracker import CounterNews
from rollouts.core.rules.state import NewStage, RuleState
from rollouts.core.rules.verdicts import FAILING_OVER_S, burns, rollback_decision, shared_incident
from rollouts.core.snapshot import Snapshot
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
class AllFailing(RuleState):
    """The candidate's failures in a row, as far as readings can tell; `since` and `until` are the row's first and last reading.

    A reading with a success in it ends the row, since nobody knows what came first. One without attempts, as when the
    gateway has set the server aside, neither ends nor extends it. `own` are those that stable could save, or that had no
    second attempt; `good` and `bad` is what stable made of attempts in the same readings, first ones and, where these are
    told apart, second ones.
    """

    name = "all_failing"
    attempts: int = 0
    since: float = 0.0
    until: float = 0.0
    own: int = 0
    good: int = 0
    bad: int = 0

    def counted(self, news: CounterNews, *, has_lost: bool) -> Self:
        return self.after(news.read_at, news.settled)

    def entered(self, stage: NewStage) -> Self:
        return type(self)() if stage.again else self

    def after(self, read_at: float, news: Arms) -> Self:
        candidate, stable = news.candidate, news.stable
        if candidate.attempts and not fails(candidate):
            return type(self)()
        if not candidate.attempts and not self.attempts:
            return self
        common, bad = candidate.bad.get(COMMON, 0), stable.bad.get(ERRORS, 0)
        own = candidate.attempts - common
        return type(self)(
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

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"all_failing": self.attempts, "all_failing_s": round(self.spread_s, 3)}

    def to_json(self) -> list[float]:
        return [self.attempts, self.since, self.until, self.own, self.good, self.bad]

    @classmethod
    def from_json(cls, value: Sequence[float]) -> Self:
        attempts, since, until, *more = value
        return cls(int(attempts), since, until, *(int(one) for one in more))

    @classmethod
    def from_earlier(cls, stored: Mapping[str, Any]) -> Self:
        return cls.from_json(stored["failures"]) if "failures" in stored else cls()


def all_failing(s: Snapshot) -> Iterator[Decision]:
    """Yields the conviction of a candidate that only fails, or its excuse."""
    row = s.of(AllFailing)
    if row.attempts < s.policy.all_failing_attempts or row.spread_s <= FAILING_OVER_S:
        return
    # Once promotion has begun, stable gets no requests to compare with, and second attempts meet the candidate again.
    if (
        s.identity.has_stable
        and not s.desired.is_promoting
        and (row.own < s.policy.all_failing_attempts or not row.is_stable_better)
    ):
        said = (
            f"the last {row.attempts} attempts on {s.identity.candidate_name} failed, "
            f"and {s.identity.stable_name} does not clearly fare better"
        )
        yield shared_incident(s, said)
        return
    burning = next((one for one in s.evidence.judged if one.guard.kind.is_failure and one.is_stable_over), None)
    if burning is not None:  # then rows come by chance; evidence convicts a candidate that fares worse still
        yield shared_incident(s, f"the last {row.attempts} attempts failed, and {burns(s, burning)}", burning)
        return
    said = (
        f"The last {row.attempts} attempts on {s.identity.candidate_name} all failed, "
        f"in readings {row.spread_s:.1f} s apart."
    )
    yield rollback_decision(s, Code.ALL_FAILING, said)
