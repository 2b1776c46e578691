"""What the engine carries from tick to tick for one rollout. It lives in the rollout's row, so any engine can go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollouts.core.counting import Counts, Reading, difference
from rollouts.core.evidence import Dispersion, Evidence, Window
from rollouts.core.plan import Guard, Policy

ERRORS = "errors"  # counted for every rollout, guarded or not


@dataclass(frozen=True)
class Watch:
    """One guard's evidence in this step, the scatter of its reference arm, and when the candidate was first seen bad.

    `first_bad_at` is the time of the last reading without a bad attempt: no earlier instant can have shown the fault, so
    that a measured reaction time is never flattered.
    """

    evidence: Evidence = field(default_factory=Evidence)
    dispersion: Dispersion = field(default_factory=Dispersion)
    first_bad_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "evidence": self.evidence.to_json(),
            "dispersion": self.dispersion.to_json(),
            "first_bad_at": self.first_bad_at,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Watch:
        return cls(
            Evidence.from_json(value["evidence"]), Dispersion.from_json(value["dispersion"]), value["first_bad_at"]
        )


@dataclass(frozen=True)
class Arms:
    candidate: Counts = field(default_factory=Counts)
    stable: Counts = field(default_factory=Counts)

    def __add__(self, other: Arms) -> Arms:
        return Arms(self.candidate + other.candidate, self.stable + other.stable)

    def to_json(self) -> dict[str, Any]:
        return {"candidate": self.candidate.to_json(), "stable": self.stable.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Arms:
        return cls(Counts.from_json(value["candidate"]), Counts.from_json(value["stable"]))


@dataclass(frozen=True)
class Failures:
    """The candidate's failures in a row, as far as readings can tell; `since` and `until` are the row's first and last reading.

    A reading with a success in it ends the row, since nobody knows what came first. One without attempts, as when the
    gateway has set the server aside, neither ends nor extends it.
    """

    attempts: int = 0
    since: float = 0.0
    until: float = 0.0

    def after(self, read_at: float, news: Counts) -> Failures:
        if not news.attempts:
            return self
        if not _fails(news):
            return Failures()
        return Failures(self.attempts + news.attempts, self.since if self.attempts else read_at, read_at)

    @property
    def spread_s(self) -> float:
        """Seconds between the first and the last reading; 0 for a single one, however many failures it brought."""
        return self.until - self.since

    def to_json(self) -> list[float]:
        return [self.attempts, self.since, self.until]

    @classmethod
    def from_json(cls, value: list[float]) -> Failures:
        return cls(int(value[0]), value[1], value[2])


#: Fields of Carry that are JSON as they are.
_PLAIN = (
    "user_requests", "user_errors", "has_failed", "is_stable_failing", "candidate_seen_at", "read_at", "commanded_at",
    "stage", "said", "gone_since", "asked_at", "is_promoting",
)  # fmt: skip


@dataclass(frozen=True)
class Carry:
    """Instants are seconds since the epoch (UTC).

    `step` counts since the gateways acknowledged this step's weight, `total` since the rollout began, `last` this tick's.
    `has_failed`: the last reading with attempts of the candidate held a failed one. `stage` names the step that the
    evidence belongs to, `said` the last recorded decision. `gone_since`: when the candidate was first found without a
    server; `asked_at`: when its deployment was last asked for. `is_promoting`: the route names the candidate as stable
    already, and its acknowledgement is awaited.
    """

    readings: Mapping[str, Reading] = field(default_factory=dict)
    step: Arms = field(default_factory=Arms)
    total: Arms = field(default_factory=Arms)
    last: Arms = field(default_factory=Arms)
    user_requests: int = 0
    user_errors: int = 0
    watches: Mapping[str, Watch] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    has_failed: bool = False
    is_stable_failing: bool = False
    candidate_seen_at: float | None = None
    read_at: float | None = None
    commanded_at: float | None = None
    stage: str = ""
    said: str = ""
    gone_since: float | None = None
    asked_at: float | None = None
    is_promoting: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "readings": {name: reading.to_json() for name, reading in self.readings.items()},
            "step": self.step.to_json(),
            "total": self.total.to_json(),
            "last": self.last.to_json(),
            "watches": {name: watch.to_json() for name, watch in self.watches.items()},
            "failures": self.failures.to_json(),
            **{name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Carry:
        if not value:
            return cls()
        return cls(
            readings={name: Reading.from_json(reading) for name, reading in value["readings"].items()},
            step=Arms.from_json(value["step"]),
            total=Arms.from_json(value["total"]),
            last=Arms.from_json(value["last"]),
            watches={name: Watch.from_json(watch) for name, watch in value["watches"].items()},
            failures=Failures.from_json(value["failures"]),
            **{name: value[name] for name in _PLAIN},
        )

    def entering(self, stage: str, at: float) -> Carry:
        """Unchanged in the same stage. In another one a new weight was written, and evidence begins afresh.

        So a fault that only this weight brings is not outvoted by the steps before.
        """
        if stage == self.stage:
            return self
        watches = {name: replace(watch, evidence=watch.evidence.fresh()) for name, watch in self.watches.items()}
        return replace(self, watches=watches, step=Arms(), stage=stage, commanded_at=at, candidate_seen_at=None)

    def acknowledged(self, at: float) -> Carry:
        """The gateways follow the weight: from here on its samples and its split count."""
        return replace(self, step=Arms(), candidate_seen_at=at)

    def looked_for_servers(self, at: float, candidate: int) -> Carry:
        """With the number of the candidate's serving servers taken in."""
        if candidate:
            return replace(self, gone_since=None)
        return replace(self, gone_since=at if self.gone_since is None else self.gone_since)


def absorb(carry: Carry, *, tick: int, readings: Mapping[str, Reading], policy: Policy, has_stable: bool) -> Carry:
    """The state with this tick's readings (by gateway) taken in. Total; no reading leaves all but `last` as it was."""
    if not readings:
        return replace(carry, last=Arms())
    between = {name: difference(carry.readings.get(name), reading) for name, reading in readings.items()}
    news = Arms()
    for part in between.values():
        news = news + Arms(part.candidate, part.stable)
    read_at = max(reading.at for reading in readings.values())
    watches = {
        guard.name: _watched(
            carry, guard, between, news, tick=tick, read_at=read_at, policy=policy, has_stable=has_stable
        )
        for guard in policy.guards
    }
    return replace(
        carry,
        readings={**carry.readings, **readings},
        step=carry.step + news,
        total=carry.total + news,
        last=news,
        user_requests=carry.user_requests + sum(part.user_requests for part in between.values()),
        user_errors=carry.user_errors + sum(part.user_errors for part in between.values()),
        watches=watches,
        failures=carry.failures.after(read_at, news.candidate),
        has_failed=news.candidate.bad.get(ERRORS, 0) > 0 if news.candidate.attempts else carry.has_failed,
        is_stable_failing=_fails(news.stable) if news.stable.attempts else carry.is_stable_failing,
        candidate_seen_at=read_at if news.candidate.attempts else carry.candidate_seen_at,
        read_at=read_at,
    )


def _fails(counts: Counts) -> bool:
    return counts.attempts > 0 and counts.bad.get(ERRORS, 0) >= counts.attempts


def _watched(
    carry: Carry,
    guard: Guard,
    between: Mapping[str, Reading],
    news: Arms,
    *,
    tick: int,
    read_at: float,
    policy: Policy,
    has_stable: bool,
) -> Watch:
    watch = carry.watches.get(guard.name, Watch())
    name = guard.name
    window = Window(
        news.candidate.bad.get(name, 0), news.candidate.attempts, news.stable.bad.get(name, 0), news.stable.attempts
    )
    reference = news.stable if has_stable else news.candidate
    first_bad_at = watch.first_bad_at
    if first_bad_at is None and window.bad_candidate:
        # the reading before this one may be of another second at each gateway: the earliest of them is the safe one
        seen = [gateway for gateway, part in between.items() if part.candidate.bad.get(name, 0)]
        first_bad_at = min(carry.readings[gateway].at if gateway in carry.readings else read_at for gateway in seen)
    return Watch(
        evidence=watch.evidence.after(tick, window, guard.roll_back_over, guard.promote_within),
        dispersion=watch.dispersion.after(
            read_at, reference.bad.get(name, 0), reference.attempts, window_s=policy.dispersion_window_s
        ),
        first_bad_at=first_bad_at,
    )
