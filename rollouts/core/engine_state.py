"""What the engine keeps from tick to tick of one rollout. It is stored in the rollout's row, so any engine can go on from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rollouts.core.all_failing import Failures
from rollouts.core.counter_deltas import ERRORS, SHED, Arms, Counts, Reading, has_lost
from rollouts.core.guard_tracker import CounterNews, GuardTracker, Recent, watched
from rollouts.core.lifecycle import RolloutState
from rollouts.core.mostly_failing import MostlyFailing
from rollouts.core.policy import Policy, Source
from rollouts.core.step_evidence import Evidence

#: Blindness counts on from tick to tick; while no engine ran, nobody looked, and nobody was blind.
LOOKED_WITHIN_S = 30.0
#: Until a replica that was set aside is out of every gateway, and what was in flight on it has ended, its failures are no evidence.
SETTLES_S = 5.0

_NO_COUNTS = Arms()
#: Fields that are JSON as they are.
_PLAIN = (
    "user_requests", "user_errors", "has_failed", "candidate_seen_at", "read_at", "commanded_at",
    "stage", "gone_since", "stable_gone_since", "asked_at", "is_promoting", "tick", "gap_at", "blind_since", "server_since", "server_base",
    "forgotten", "blind_at", "served_since", "drawn", "stable_looks", "stable_unanswered", "load_failure", "unsteady_since",
    "refuses_forced",
)  # fmt: skip
#: Of these, fields that are kept only where there is something to keep.
_SELDOM = frozenset(
    {"stable_gone_since", "stable_looks", "stable_unanswered", "load_failure", "unsteady_since", "refuses_forced"}
)


class Aside(NamedTuple):
    """A replica of the candidate that was set aside, when, and how many answered until then; whether as many have since; and
    the guards besides errors whose evidence was of it."""

    replica: str
    at: float
    servers: int
    is_replaced: bool = False
    besides: tuple[str, ...] = ()

    @property
    def guards(self) -> tuple[str, ...]:
        return (ERRORS, *self.besides)


class StableOdd(NamedTuple):
    """A replica of stable that failed where its others did not, when that was found, and how many answered then. `is_aside`: it gets no
    more traffic; else it answers until another does. `gone_at`: since when another has; `is_renewed`: evidence has begun afresh since.
    `deployment`: its own, as another may come to the same node and port; None: an older version did not keep it."""

    replica: str
    at: float
    servers: int
    is_aside: bool
    gone_at: float | None = None
    is_renewed: bool = False
    deployment: int | None = None

    def to_json(self) -> list[Any]:
        return list(self if self.deployment is not None else self[:-1])


@dataclass(frozen=True)
class EngineState:
    """Instants are seconds since the epoch (UTC). A stage is shadowing, a step of weight, or the bake."""

    # counters
    readings: Mapping[str, Reading] = field(default_factory=dict)  # the last ones, by gateway
    external: Mapping[str, Reading] = field(default_factory=dict)  # likewise, by guard that counts elsewhere
    tick: int = -1  # the last one whose readings were taken in
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
    harm: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # by guard, before this stage: excess, variance
    failures: Failures = field(default_factory=Failures)  # the candidate's failures in a row
    mostly: MostlyFailing = field(default_factory=MostlyFailing)  # readings in a row with many failures
    has_failed: bool = False  # the last reading with attempts of the candidate held a failed one
    forgotten: int = 0  # how often evidence of a warm-up was dropped in this stage
    gap_at: float | None = None  # when counts of this stage were last lost; None: they never were
    blind_since: float | None = None  # since when no tick could be judged; None: the last one could
    blind_at: float | None = None  # the last tick that could not be judged
    # the stage
    stage: str = ""  # names the one that the evidence belongs to; empty before the first
    commanded_at: float | None = None  # when its weight was written
    candidate_seen_at: float | None = None  # the candidate's last attempt in it, or its acknowledgement
    is_promoting: bool = False  # the route names the candidate as stable already; its acknowledgement is awaited
    last_decision: str = ""  # the last one on record, as action and code
    refuses_forced: bool | None = None  # the gateways refuse requests that force a release, until the rollout ends
    # the candidate's servers
    asked_at: float | None = None  # when its deployment was last asked for
    load_failure: str | None = None  # why its last try to load failed, as a sentence; None once it has a server
    gone_since: float | None = None  # when it was first found without a server; None: it has one
    server_since: float | None = None  # when its newest server came
    unsteady_since: float | None = None  # after a crossing: since when it has had no steady server
    server_base: int = 0  # attempts of the candidate until then
    served_since: float | None = None  # when that server was first seen to have answered
    aside: Aside | None = None  # the one that was set aside, as it failed where the others did not
    # stable's servers
    stable_gone_since: float | None = None  # as `gone_since`
    stable_unanswered: int | None = None  # its requests since the last reading in which it answered one
    stable_looks: int | None = None  # how often its replicas were looked at; None: never
    stable_odd: StableOdd | None = None  # the one that failed where the others did not

    def to_json(self) -> dict[str, Any]:
        return {
            "readings": {name: reading.to_json() for name, reading in self.readings.items()},
            "external": {name: reading.to_json() for name, reading in self.external.items()},
            "step": self.step.to_json(),
            **({} if self.settled == self.step else {"settled": self.settled.to_json()}),
            "total": self.total.to_json(),
            "last": self.last.to_json(),
            "watches": {name: watch.to_json() for name, watch in self.watches.items()},
            "failures": self.failures.to_json(),
            "harm": {name: [round(part, 4) for part in one] for name, one in self.harm.items()},
            "said": self.last_decision,
            **({"mostly": self.mostly.to_json()} if self.mostly.readings else {}),
            **({} if self.aside is None else {"aside": [*self.aside[:-1], *self.aside.besides]}),
            **({} if self.stable_odd is None else {"stable_odd": self.stable_odd.to_json()}),
            **{name: value for name in _PLAIN if (value := getattr(self, name)) is not None or name not in _SELDOM},
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
            "failures": Failures.from_json(value.get("failures", [0, 0.0, 0.0])),
            "mostly": MostlyFailing.from_json(value["mostly"]) if "mostly" in value else MostlyFailing(),
            "harm": {name: (one[0], one[1]) for name, one in value.get("harm", {}).items()},
            "last_decision": value.get("said", ""),
            "aside": _aside(value["aside"]) if "aside" in value else None,
            "stable_odd": StableOdd(*value["stable_odd"]) if "stable_odd" in value else None,
        }
        return cls(**arms, **read, **{name: value[name] for name in _PLAIN if name in value})

    def entering(self, stage: str, at: float, policy: Policy) -> EngineState:
        """Unchanged in the same stage. In another one a new weight was written, and evidence begins afresh.

        So a fault that only this weight brings is not outvoted by the steps before.
        """
        if stage == self.stage:
            return self
        before = self.looking_again() if RolloutState.SECOND_LOOK in {stage, self.stage} else self
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
            for name, watch in before.watches.items()
        }
        return replace(
            before, watches=watches, step=_NO_COUNTS, settled=_NO_COUNTS, stage=stage, commanded_at=at, candidate_seen_at=None,
            harm=self.harm_so_far(policy), gap_at=None, forgotten=0, mostly=MostlyFailing(), unsteady_since=None,
        )  # fmt: skip

    def looking_again(self) -> EngineState:
        """Without the history of the candidate's attempts, so that the next look starts fresh. Stable's history and the harm to users
        stay."""
        watches = {
            name: replace(watch, dispersion=watch.dispersion.without_candidate(), recent=Recent(), first_bad_at=None)
            for name, watch in self.watches.items()
        }
        return replace(self, watches=watches, failures=Failures(), has_failed=False)

    def harm_so_far(self, policy: Policy) -> dict[str, tuple[float, float]]:
        """For each guard: bad attempts of the candidate beyond what it tolerates of stable's share at the same time
        (`roll_back_over`), without each stage's worst tick, and the variance of that number. No stage takes any away.
        """
        found, tolerances = dict(self.harm), {guard.name: guard.roll_back_over for guard in policy.guards}
        for name, watch in self.watches.items():
            for harm in watch.harm.values() if name in tolerances else ():
                excess, variance = found.get(name, (0.0, 0.0))
                found[name] = (excess + harm.lasting(tolerances[name]), variance + harm.variance(tolerances[name]))
        return found

    def forgetting(self, guard: str) -> EngineState:
        """Without this guard's evidence: it was of a server that was still warming up."""
        if guard not in self.watches:
            return self
        watches = {**self.watches, guard: replace(self.watches[guard], evidence=Evidence())}
        return replace(self, watches=watches, forgotten=self.forgotten + 1)

    def setting_aside(self, replica: str, at: float, servers: int, besides: Sequence[str] = ()) -> EngineState:
        """Without the evidence of errors, and of the guards `besides`, and the candidate's scatter in it: they were of a replica that gets
        no more traffic."""
        aside = Aside(replica, at, servers, besides=tuple(besides))
        fresh = {
            name: replace(watch, evidence=Evidence(), dispersion=watch.dispersion.without_candidate())
            for name, watch in self.watches.items()
            if name in aside.guards
        }
        return replace(self, aside=aside, watches={**self.watches, **fresh}, mostly=MostlyFailing())

    def replaced(self, at: float, *, is_replacing: bool) -> EngineState:
        """With it taken in whether another answers in the place of the one that was set aside."""
        if self.aside is None or self.aside.is_replaced or is_replacing or at - self.aside.at <= SETTLES_S:
            return self
        return replace(self, aside=self.aside._replace(is_replaced=True))

    def settling(self, at: float) -> EngineState:
        """Without the evidence that was of the replica that was set aside, while answers of it may still come."""
        if self.aside is None or at - self.aside.at > SETTLES_S:
            return self
        own = self.aside.guards
        return replace(self, watches=self._afresh(own), mostly=MostlyFailing())

    def _afresh(self, guards: Collection[str]) -> dict[str, GuardTracker]:
        """Every watch, those of these guards without evidence."""
        fresh = {name: replace(one, evidence=Evidence()) for name, one in self.watches.items() if name in guards}
        return {**self.watches, **fresh}

    def stable_settling(self, at: float, *, is_replacing: bool) -> EngineState:
        """With it taken in whether another replica of stable answers in the odd one's place; where it has for some seconds, errors of both
        arms are counted from here on: none of before is compared with one of after. Other guards were not of that replica."""
        odd = self.stable_odd
        if odd is None or odd.is_renewed:
            return self
        if is_replacing or odd.gone_at is None:
            return replace(self, stable_odd=odd._replace(gone_at=None if is_replacing else at))
        if at - odd.gone_at <= SETTLES_S:
            return self
        renewed = odd._replace(is_renewed=True)
        return replace(self, stable_odd=renewed, watches=self._afresh((ERRORS,)), mostly=MostlyFailing())

    def blinded(self, at: float, *, is_blind: bool) -> EngineState:
        """With whether this tick could be judged taken in."""
        if not is_blind:
            return self if self.blind_since is None else replace(self, blind_since=None, blind_at=None)
        has_looked = self.blind_at is not None and at - self.blind_at <= LOOKED_WITHIN_S
        since = self.blind_since if has_looked and self.blind_since is not None else at
        return replace(self, blind_since=since, blind_at=at)

    def met_server(self, since: float | None) -> EngineState:
        """With the instant taken in at which the candidate's newest server came."""
        if since is None or since == self.server_since:
            return self
        watches = {name: replace(watch, first=(0, 0)) for name, watch in self.watches.items()}
        base = self.total.candidate.attempts
        return replace(self, watches=watches, server_since=since, server_base=base, served_since=None)

    def acknowledged(self, at: float) -> EngineState:
        """The gateways follow the weight: from here on its samples and its split count."""
        return replace(self, step=_NO_COUNTS, settled=_NO_COUNTS, candidate_seen_at=at)

    def looked_for_servers(self, at: float, candidate: int) -> EngineState:
        """With the number of the candidate's serving servers taken in."""
        if candidate:
            return replace(self, gone_since=None)
        return replace(self, gone_since=at if self.gone_since is None else self.gone_since)

    def waited_for_server(self, at: float, *, is_steady: bool) -> EngineState:
        """With whether the candidate has a steady server taken in, after a crossing."""
        if is_steady is (self.unsteady_since is None):
            return self
        return replace(self, unsteady_since=None if is_steady else at)

    def preparing(self, load_failure: str, *, has_server: bool) -> EngineState:
        """With the candidate's last failure to load taken in, which stays known until it has a server."""
        kept = None if has_server else load_failure or self.load_failure
        return self if kept == self.load_failure else replace(self, load_failure=kept)

    def looked_for_stable(self, at: float, servers: int | None) -> EngineState:
        """With the number of stable's serving servers taken in; None: nobody knows."""
        if servers is None or (servers > 0) is (self.stable_gone_since is None):
            return self
        return replace(self, stable_gone_since=None if servers else at)


def _aside(value: Sequence[Any]) -> Aside:
    replica, at, servers, is_replaced, *besides = value
    return Aside(replica, at, servers, is_replaced, tuple(besides))


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
    gap_at = news.read_at if _has_gap(state.readings, readings) else state.gap_at
    counted = _counted(state, news, readings) if readings else {}
    elsewhere = {**state.external, **external} if external else state.external
    return replace(
        state,
        tick=tick,
        watches=watches,
        external=elsewhere,
        last=news.arms,
        gap_at=gap_at,
        drawn=news.whole.candidate.routed,
        **counted,
    )


def _has_gap(before: Mapping[str, Reading], now: Mapping[str, Reading]) -> bool:
    """Whether counts were lost: a gateway began anew, or its counters fell. What was read late is not lost."""
    return any(has_lost(before[name], reading) for name, reading in now.items() if name in before)


def _counted(state: EngineState, news: CounterNews, readings: Mapping[str, Reading]) -> dict[str, Any]:
    """What changes with the gateways' counts: the sums of both arms and of users, and what the last attempts were like."""
    candidate, step = news.arms.candidate, state.step + news.arms
    is_all = state.settled is state.step and len(news.settled_parts) == len(news.parts)  # then they are added up once
    return {
        "readings": {**state.readings, **readings},
        "step": step,
        "settled": step if is_all else state.settled + news.settled,
        "total": state.total + news.whole,
        "user_requests": state.user_requests + sum(part.user_requests for part in news.parts.values()),
        "user_errors": state.user_errors + sum(part.user_errors for part in news.parts.values()),
        "failures": state.failures.after(news.read_at, news.settled),
        "mostly": state.mostly.after(news.read_at, news.settled_parts),
        "stable_unanswered": _unanswered(state.stable_unanswered, news.arms.stable),
        "has_failed": candidate.bad.get(ERRORS, 0) > 0 if candidate.attempts else state.has_failed,
        "candidate_seen_at": news.read_at if candidate.attempts else state.candidate_seen_at,
        "read_at": news.read_at,
        "served_since": news.read_at if state.served_since is None and candidate.attempts else state.served_since,
    }


def _unanswered(before: int | None, stable: Counts) -> int | None:
    """Stable's requests in a row without an answer; None after an answer.

    A request that was shed proves nothing: the gateway sheds too, without a server, while many requests wait to connect.
    """
    if stable.attempts > stable.bad.get(ERRORS, 0):
        return None
    return (before or 0) + max(stable.routed - stable.bad.get(SHED, 0), stable.attempts) or None
