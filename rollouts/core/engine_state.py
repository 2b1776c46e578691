"""State of a rollout that the engine keeps from tick to tick. It is stored in the rollout's row, so any engine can continue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from rollouts.core.commands import Command, ForgetEvidence, ForgetFirst
from rollouts.core.counter_deltas import Arms, Reading, has_lost
from rollouts.core.guard_tracker import CounterNews, GuardTracker, Recent, watched
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Policy, Source
from rollouts.core.rules.state import NewStage, RuleState, TickView
from rollouts.core.rules.table import BEGIN, states_of
from rollouts.core.snapshot import Desired, Observed
from rollouts.core.step_evidence import Evidence

_NO_COUNTS = Arms()
#: Fields that are JSON as they are.
_PLAIN = (
    "user_requests", "user_errors", "candidate_seen_at", "read_at", "commanded_at", "stage", "asked_at", "is_promoting", "tick", "drawn",
)  # fmt: skip
Kind = TypeVar("Kind", bound=RuleState)


@dataclass(frozen=True)
class EngineState:
    """Instants are seconds since the epoch (UTC). A stage is shadowing, a step of weight, or the bake."""

    # counters
    readings: Mapping[str, Reading] = field(default_factory=dict)  # the last ones, by gateway
    external: Mapping[str, Reading] = field(default_factory=dict)  # likewise, by guard that counts elsewhere
    tick: int = -1  # the last tick with readings
    read_at: float | None = None  # when the last readings were taken
    step: Arms = _NO_COUNTS  # counts since the gateways acknowledged this stage's weight
    settled: Arms = _NO_COUNTS  # of these, those of gateways whose answers come as steadily as requests
    total: Arms = field(default_factory=Arms)  # counts since the rollout began
    last: Arms = field(default_factory=Arms)  # counts of the last tick alone
    drawn: int = 0  # of the last tick: requests drawn for the candidate that ended, whatever weight they began under
    user_requests: int = 0  # users' requests since the rollout began, whichever release answered
    user_errors: int = 0  # of these, those that users saw fail
    # evidence
    watches: Mapping[str, GuardTracker] = field(default_factory=dict)  # by guard
    rules: Mapping[str, RuleState] = field(default_factory=lambda: BEGIN)  # what each rule keeps, by its name
    # the stage
    stage: str = ""  # names the one that the evidence belongs to; empty before the first
    commanded_at: float | None = None  # when its weight was written
    candidate_seen_at: float | None = None  # the candidate's last attempt in it, or its acknowledgement
    is_promoting: bool = False  # the route names the candidate as stable already; its acknowledgement is awaited
    last_decision: str = ""  # the last one on record, as action and code
    asked_at: float | None = None  # when the candidate's replica was last asked for

    def to_json(self) -> dict[str, Any]:
        return {
            "readings": {name: reading.to_json() for name, reading in self.readings.items()},
            "external": {name: reading.to_json() for name, reading in self.external.items()},
            "step": self.step.to_json(),
            **({} if self.settled == self.step else {"settled": self.settled.to_json()}),
            "total": self.total.to_json(),
            "last": self.last.to_json(),
            "watches": {name: watch.to_json() for name, watch in self.watches.items()},
            "said": self.last_decision,
            "rules": {name: one.to_json() for name, one in self.rules.items() if one != BEGIN[name]},
            **{name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EngineState:
        """The state as it was kept; what an older version did not keep is as at the beginning."""
        arms: dict[str, Any] = {
            name: Arms.from_json(value[name]) for name in ("step", "settled", "total", "last") if name in value
        }
        if "step" in arms:
            arms.setdefault("settled", arms["step"])
        read: dict[str, Any] = {
            "readings": {name: Reading.from_json(one) for name, one in value.get("readings", {}).items()},
            "external": {name: Reading.from_json(one) for name, one in value.get("external", {}).items()},
            "watches": {name: GuardTracker.from_json(one) for name, one in value.get("watches", {}).items()},
            "rules": states_of(value),
            "last_decision": value.get("said", ""),
        }
        return cls(**arms, **read, **{name: value[name] for name in _PLAIN if name in value})

    def entering(self, stage: str, at: float, policy: Policy) -> EngineState:
        """Unchanged in the same stage. In another one a new weight was written, and evidence begins afresh.

        So a fault that only this weight brings is not outvoted by the steps before.
        """
        if stage == self.stage:
            return self
        again = RolloutState.SECOND_LOOK in {stage, self.stage}
        before = self._without_candidate() if again else self.watches
        watches = {
            name: replace(
                watch,
                evidence=Evidence(),
                dispersion=watch.dispersion if self.stage else watch.dispersion.as_history(),
                minute=watch.minute if self.stage else watch.minute.as_history(),
                seen_at=None,
                harm={},
                forced=0,
            )
            for name, watch in before.items()
        }
        ended = NewStage(again, self.watches, policy)
        rules = {name: one.entered(ended) for name, one in self.rules.items()}
        return replace(
            self,
            watches=watches,
            rules=rules,
            step=_NO_COUNTS,
            settled=_NO_COUNTS,
            stage=stage,
            commanded_at=at,
            candidate_seen_at=None,
        )

    def _without_candidate(self) -> dict[str, GuardTracker]:
        """Without the history of the candidate's attempts, so that the next look starts fresh. Stable's history and the harm to users
        stay."""
        return {
            name: replace(watch, dispersion=watch.dispersion.without_candidate(), recent=Recent(), first_bad_at=None)
            for name, watch in self.watches.items()
        }

    def of(self, kind: type[Kind]) -> Kind:
        """The state of one rule."""
        return cast(Kind, self.rules[kind.name])

    def observed(self, seen: Observed, desired: Desired, *, has_stable: bool) -> EngineState:
        """Returns the state after every rule has observed the tick, its readings aside."""
        rules, commands = dict(self.rules), list[Command]()
        given = TickView(seen, desired, has_stable, self.total.candidate.attempts, rules)
        for name, one in rules.items():
            rules[name], more = one.observed(given)
            commands += more
        return replace(self, rules=rules).obeying(commands, seen)

    def obeying(self, commands: Iterable[Command], seen: Observed) -> EngineState:
        """With the commands carried out on evidence, and by every rule."""
        watches, rules = dict(self.watches), self.rules
        for command in commands:
            if isinstance(command, ForgetEvidence):
                for name in watches.keys() & set(command.guards):
                    watch = replace(watches[name], evidence=Evidence())
                    scatter = watch.dispersion.without_candidate() if command.has_scatter else watch.dispersion
                    watches[name] = replace(watch, dispersion=scatter)
            elif isinstance(command, ForgetFirst):
                watches = {name: replace(watch, first=(0, 0)) for name, watch in watches.items()}
            rules = {name: one.obeyed(command, seen) for name, one in rules.items()}
        return replace(self, watches=watches, rules=rules)

    def acknowledged(self, at: float) -> EngineState:
        """The gateways follow the weight: from here on its samples and its split count."""
        return replace(self, step=_NO_COUNTS, settled=_NO_COUNTS, candidate_seen_at=at)


def update_state(
    state: EngineState,
    *,
    tick: int,
    readings: Mapping[str, Reading],
    policy: Policy,
    has_stable: bool,
    external: Mapping[str, Reading] | None = None,
) -> EngineState:
    """The state with this tick's readings taken in: `readings` by gateway, `external` by guard that counts elsewhere.

    Total. A tick that was taken in before changes nothing; what happened meanwhile is in the next one's difference. No
    reading leaves all but `last` and `drawn` as they were.
    """
    if tick <= state.tick:
        return state
    external = external or {}
    readings = {name: reading.after(state.readings.get(name)) for name, reading in readings.items()}
    news = CounterNews.between(state.readings, readings)
    watches = dict(state.watches)
    for guard in policy.guards:
        if guard.source is Source.GATEWAY:
            own = news
        else:
            mine = {guard.name: external[guard.name]} if guard.name in external else {}
            own = CounterNews.between(state.external, mine)
        if own.parts:
            watch = watches.get(guard.name, GuardTracker())
            watches[guard.name] = watched(watch, guard, own, policy=policy, has_stable=has_stable)
    counted = _counted(state, news, readings) if readings else {}
    elsewhere = {**state.external, **external} if external else state.external
    return replace(
        state,
        tick=tick,
        watches=watches,
        external=elsewhere,
        last=news.arms,
        drawn=news.whole.candidate.routed,
        **counted,
    )


def _has_gap(before: Mapping[str, Reading], now: Mapping[str, Reading]) -> bool:
    """Whether counts were lost: a gateway began anew, or its counters fell. What was read late is not lost."""
    return any(has_lost(before[name], reading) for name, reading in now.items() if name in before)


def _counted(state: EngineState, news: CounterNews, readings: Mapping[str, Reading]) -> dict[str, Any]:
    """What changes with the gateways' counts: the sums of both arms and of users, and what the last attempts were like."""
    candidate, is_lossy = news.arms.candidate, _has_gap(state.readings, readings)
    step = state.step + news.arms
    is_all = state.settled is state.step and len(news.settled_parts) == len(news.parts)  # then they are added up once
    return {
        "readings": {**state.readings, **readings},
        "step": step,
        "settled": step if is_all else state.settled + news.settled,
        "total": state.total + news.whole,
        "user_requests": state.user_requests + sum(part.user_requests for part in news.parts.values()),
        "user_errors": state.user_errors + sum(part.user_errors for part in news.parts.values()),
        "rules": {name: one.counted(news, has_lost=is_lossy) for name, one in state.rules.items()},
        "candidate_seen_at": news.read_at if candidate.attempts else state.candidate_seen_at,
        "read_at": news.read_at,
    }
