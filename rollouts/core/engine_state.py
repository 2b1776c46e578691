"""What the engine carries from tick to tick for one rollout. It lives in the rollout's row, so any engine can go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollouts.core.all_failing import Failures
from rollouts.core.counter_deltas import ERRORS, Arms, Reading, has_lost
from rollouts.core.evidence import Evidence
from rollouts.core.guard_tracker import CounterNews, GuardTracker, watched
from rollouts.core.policy import Policy, Source

#: Blindness counts on from tick to tick; while no engine ran, nobody looked, and nobody was blind.
LOOKED_WITHIN_S = 30.0


#: Fields of Carry that are JSON as they are.
_PLAIN = (
    "user_requests", "user_errors", "has_failed", "candidate_seen_at", "read_at", "commanded_at",
    "stage", "said", "gone_since", "asked_at", "is_promoting", "tick", "gap_at", "blind_since", "server_since", "server_base",
    "forgotten", "blind_at", "served_since", "drawn",
)  # fmt: skip


@dataclass(frozen=True)
class EngineState:
    """Instants are seconds since the epoch (UTC).

    `readings` are the last ones by gateway, `external` those by guard that counts elsewhere; `tick` is the last one taken in.
    `step` counts since the gateways acknowledged this step's weight, `total` since the rollout began, `last` this tick's.
    `has_failed`: the last reading with attempts of the candidate held a failed one. `stage` names the step that the
    evidence belongs to, `said` the last recorded decision. `gone_since`: when the candidate was first found without a
    server; `asked_at`: when its deployment was last asked for. `is_promoting`: the route names the candidate as stable
    already, and its acknowledgement is awaited. `harm`: for each guard, the candidate's bad attempts beyond what it tolerates,
    in the stages before this one, and the variance of that number. `gap_at`: when counts of this stage were last lost.
    `blind_since`: since when no tick could be judged, `blind_at`: the last such tick. `forgotten`: how often evidence of a
    warm-up was dropped in this stage. `server_since`, `server_base`: when the candidate's newest server came, and how many
    attempts the candidate had had by then; `served_since`: when it was first seen to have answered. `drawn`: requests that were
    drawn for the candidate and ended in this tick, whatever weight they began under.
    """

    readings: Mapping[str, Reading] = field(default_factory=dict)
    external: Mapping[str, Reading] = field(default_factory=dict)
    step: Arms = field(default_factory=Arms)
    total: Arms = field(default_factory=Arms)
    last: Arms = field(default_factory=Arms)
    user_requests: int = 0
    user_errors: int = 0
    watches: Mapping[str, GuardTracker] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    has_failed: bool = False
    candidate_seen_at: float | None = None
    read_at: float | None = None
    commanded_at: float | None = None
    stage: str = ""
    said: str = ""
    gone_since: float | None = None
    asked_at: float | None = None
    is_promoting: bool = False
    tick: int = -1
    harm: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gap_at: float | None = None
    blind_since: float | None = None
    server_since: float | None = None
    server_base: int = 0
    forgotten: int = 0
    blind_at: float | None = None
    served_since: float | None = None
    drawn: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "readings": {name: reading.to_json() for name, reading in self.readings.items()},
            "external": {name: reading.to_json() for name, reading in self.external.items()},
            "step": self.step.to_json(),
            "total": self.total.to_json(),
            "last": self.last.to_json(),
            "watches": {name: watch.to_json() for name, watch in self.watches.items()},
            "failures": self.failures.to_json(),
            "harm": {name: [round(part, 4) for part in one] for name, one in self.harm.items()},
            **{name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EngineState:
        """The state as it was kept; what an older version did not keep is as at the beginning."""
        arms: dict[str, Any] = {
            name: Arms.from_json(value[name]) for name in ("step", "total", "last") if name in value
        }
        read: dict[str, Any] = {
            "readings": {name: Reading.from_json(one) for name, one in value.get("readings", {}).items()},
            "external": {name: Reading.from_json(one) for name, one in value.get("external", {}).items()},
            "watches": {name: GuardTracker.from_json(one) for name, one in value.get("watches", {}).items()},
            "failures": Failures.from_json(value.get("failures", [0, 0.0, 0.0])),
            "harm": {name: (one[0], one[1]) for name, one in value.get("harm", {}).items()},
        }
        return cls(**arms, **read, **{name: value[name] for name in _PLAIN if name in value})

    def entering(self, stage: str, at: float, policy: Policy) -> EngineState:
        """Unchanged in the same stage. In another one a new weight was written, and evidence begins afresh.

        So a fault that only this weight brings is not outvoted by the steps before.
        """
        if stage == self.stage:
            return self
        watches = {
            name: replace(
                watch,
                evidence=Evidence(),
                dispersion=watch.dispersion if self.stage else watch.dispersion.as_history(),
                seen_at=None,
                harm={},
            )
            for name, watch in self.watches.items()
        }
        return replace(
            self, watches=watches, step=Arms(), stage=stage, commanded_at=at, candidate_seen_at=None,
            harm=self.harm_so_far(policy), gap_at=None, forgotten=0,
        )  # fmt: skip

    def harm_so_far(self, policy: Policy) -> dict[str, tuple[float, float]]:
        """For each guard: bad attempts of the candidate beyond what it tolerates of stable's share at the same time
        (`roll_back_over`), and the variance of that number. Every stage adds its own, and none takes away.
        """
        found, tolerances = dict(self.harm), {guard.name: guard.roll_back_over for guard in policy.guards}
        for name, watch in self.watches.items():
            for harm in watch.harm.values() if name in tolerances else ():
                excess, variance = found.get(name, (0.0, 0.0))
                found[name] = (excess + harm.excess(tolerances[name]), variance + harm.variance(tolerances[name]))
        return found

    def forgetting(self, guard: str) -> EngineState:
        """Without this guard's evidence: it was of a server that was still warming up."""
        if guard not in self.watches:
            return self
        watches = {**self.watches, guard: replace(self.watches[guard], evidence=Evidence())}
        return replace(self, watches=watches, forgotten=self.forgotten + 1)

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
        return replace(self, step=Arms(), candidate_seen_at=at)

    def looked_for_servers(self, at: float, candidate: int) -> EngineState:
        """With the number of the candidate's serving servers taken in."""
        if candidate:
            return replace(self, gone_since=None)
        return replace(self, gone_since=at if self.gone_since is None else self.gone_since)


def update_state(
    carry: EngineState,
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
    if tick <= carry.tick:
        return carry
    external = external or {}
    readings = {name: reading.after(carry.readings.get(name)) for name, reading in readings.items()}
    news = CounterNews.between(carry.readings, readings)
    watches = dict(carry.watches)
    for guard in policy.guards:
        if guard.source is Source.GATEWAY:
            own = news
        else:
            mine = {guard.name: external[guard.name]} if guard.name in external else {}
            own = CounterNews.between(carry.external, mine)
        if own.parts:
            watch = watches.get(guard.name, GuardTracker())
            watches[guard.name] = watched(watch, guard, own, policy=policy, has_stable=has_stable)
    gap_at = news.read_at if _has_gap(carry.readings, readings) else carry.gap_at
    counted = _counted(carry, news, readings) if readings else {}
    elsewhere = {**carry.external, **external} if external else carry.external
    return replace(
        carry,
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


def _counted(carry: EngineState, news: CounterNews, readings: Mapping[str, Reading]) -> dict[str, Any]:
    """What changes with the gateways' counts: the sums of both arms and of users, and what the last attempts were like."""
    candidate = news.arms.candidate
    return {
        "readings": {**carry.readings, **readings},
        "step": carry.step + news.arms,
        "total": carry.total + news.whole,
        "user_requests": carry.user_requests + sum(part.user_requests for part in news.parts.values()),
        "user_errors": carry.user_errors + sum(part.user_errors for part in news.parts.values()),
        "failures": carry.failures.after(news.read_at, news.settled),
        "has_failed": candidate.bad.get(ERRORS, 0) > 0 if candidate.attempts else carry.has_failed,
        "candidate_seen_at": news.read_at if candidate.attempts else carry.candidate_seen_at,
        "read_at": news.read_at,
        "served_since": news.read_at if carry.served_since is None and candidate.attempts else carry.served_since,
    }
