"""From readings of cumulative counters to what happened in between, for each arm, over all gateways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Counts:
    """Attempts of one arm, the bad ones for each guard's name, and user requests that the split sent to it first."""

    attempts: int = 0
    routed: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        names = {**self.bad, **other.bad}
        return Counts(
            self.attempts + other.attempts,
            self.routed + other.routed,
            {name: self.bad.get(name, 0) + other.bad.get(name, 0) for name in names},
        )

    def since(self, before: Counts) -> Counts:
        """What was added since; nothing where a counter fell, because then nobody can tell.

        A gateway that restarted is known by its epoch. Taking a fall for a new start would count all its past again.
        """
        if self.fell(before):
            return Counts()
        return Counts(
            self.attempts - before.attempts,
            self.routed - before.routed,
            {name: count - before.bad.get(name, 0) for name, count in self.bad.items()},
        )

    def fell(self, before: Counts) -> bool:
        """Whether any of the counters is lower than it was."""
        if self.attempts < before.attempts or self.routed < before.routed:
            return True
        return any(count < before.bad.get(name, 0) for name, count in self.bad.items())

    def to_json(self) -> dict[str, Any]:
        return {"attempts": self.attempts, "routed": self.routed, "bad": dict(self.bad)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Counts:
        return cls(value["attempts"], value["routed"], dict(value["bad"]))


@dataclass(frozen=True)
class Reading:
    """What one gateway had counted at `at` (seconds), since its `epoch` began."""

    epoch: str
    at: float
    candidate: Counts
    stable: Counts
    user_requests: int = 0
    user_errors: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "at": self.at,
            "candidate": self.candidate.to_json(),
            "stable": self.stable.to_json(),
            "user": [self.user_requests, self.user_errors],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reading:
        arms = (Counts.from_json(value["candidate"]), Counts.from_json(value["stable"]))
        return cls(value["epoch"], value["at"], *arms, *value["user"])


def difference(before: Reading | None, now: Reading) -> Reading:
    """What happened between two readings of one gateway, as a reading whose counts are differences.

    Nothing for a gateway that was never read: its past is not this rollout's. Everything for a new epoch: the
    gateway began counting after the last reading.
    """
    if before is None:
        return Reading(now.epoch, now.at, Counts(), Counts())
    if before.epoch != now.epoch:
        return now
    return Reading(
        now.epoch,
        now.at,
        now.candidate.since(before.candidate),
        now.stable.since(before.stable),
        max(0, now.user_requests - before.user_requests),
        max(0, now.user_errors - before.user_errors),
    )
