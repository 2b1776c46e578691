"""The state of a rule over ticks. The engine hands every event to every state; a rule overrides the methods it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar, cast

from rollouts.core.commands import Command
from rollouts.core.guard_tracker import CounterNews, GuardTracker
from rollouts.core.policy import Policy
from rollouts.core.snapshot import Desired, Observed

Kind = TypeVar("Kind", bound="RuleState")


@dataclass(frozen=True)
class NewStage:
    """`again`: for another look, or out of one. `trackers`: of the stage that ends."""

    again: bool
    trackers: Mapping[str, GuardTracker]
    policy: Policy


@dataclass(frozen=True)
class TickView:
    """What one tick saw. `attempts`: of the candidate, since the rollout began. `rules`: states, those before in the table up to date."""

    observed: Observed
    desired: Desired
    has_stable: bool
    attempts: int
    rules: Mapping[str, RuleState]

    @property
    def now(self) -> float:
        return self.observed.now

    def of(self, kind: type[Kind]) -> Kind:
        return cast(Kind, self.rules[kind.name])


@dataclass(frozen=True)
class RuleState:
    """A rule's state: total functions from one tick's state to the next."""

    name: ClassVar[str]
    #: By field: its name in the states that older versions stored.
    earlier: ClassVar[Mapping[str, str]] = {}

    def counted(self, news: CounterNews, *, has_lost: bool) -> Self:
        """With one tick's counts of all gateways. `has_lost`: some counts were lost before them."""
        return self

    def observed(self, seen: TickView) -> tuple[Self, tuple[Command, ...]]:
        """Returns the state after the tick, and commands for all rules."""
        return self, ()

    def entered(self, stage: NewStage) -> Self:
        """As a new stage begins with it."""
        return self

    def obeyed(self, command: Command, seen: Observed) -> Self:
        return self

    @property
    def facts(self) -> Mapping[str, Any]:
        """Its part of every decision's facts."""
        return {}

    def to_json(self) -> Any:
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls(**{one.name: value[one.name] for one in fields(cls) if one.name in value})

    @classmethod
    def from_earlier(cls, stored: Mapping[str, Any]) -> Self:
        """As an older version stored it, among the engine's own fields."""
        return cls(**{name: stored[key] for name, key in cls.earlier.items() if stored.get(key) is not None})
