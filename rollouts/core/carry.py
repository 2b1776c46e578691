"""What the engine carries from tick to tick for one rollout. It lives in the rollout's row, so any engine can go on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollouts.core.counting import Counts, Reading, difference
from rollouts.core.dispersion import Dispersion
from rollouts.core.evidence import Evidence, Tempering
from rollouts.core.plan import Guard, Policy, Source

ERRORS = "errors"  # counted for every rollout, guarded or not
#: `Recent` covers the last 5 to 10 seconds.
HALF_S = 5.0


#: Blindness counts on from tick to tick; while no engine ran, nobody looked, and nobody was blind.
LOOKED_WITHIN_S = 30.0


@dataclass(frozen=True)
class Recent:
    """The candidate's attempts of about the last ten seconds, and the bad ones, kept as two halves of which the older is dropped."""

    halves: tuple[int, int, int, int] = (0, 0, 0, 0)  # bad and attempts before `since`, bad and attempts from then on
    since: float = 0.0

    def after(self, at: float, bad: int, attempts: int) -> Recent:
        old_bad, old, new_bad, new = self.halves
        age_s = at - self.since
        if age_s < HALF_S:
            return Recent((old_bad, old, new_bad + bad, new + attempts), self.since)
        if age_s < 2 * HALF_S:
            return Recent((new_bad, new, bad, attempts), self.since + HALF_S)
        return Recent((0, 0, bad, attempts), at)

    @property
    def bad(self) -> int:
        return self.halves[0] + self.halves[2]

    @property
    def attempts(self) -> int:
        return self.halves[1] + self.halves[3]

    def to_json(self) -> list[float]:
        return [*self.halves, self.since]

    @classmethod
    def from_json(cls, value: Sequence[float]) -> Recent:
        old_bad, old, new_bad, new, since = value
        return cls((int(old_bad), int(old), int(new_bad), int(new)), since)


@dataclass(frozen=True)
class Watch:
    """One guard's evidence in this step, the scatter of its counters, and when the candidate was first seen bad.

    `first_bad_at` is the time of the last reading without a bad attempt: no earlier instant can have shown the fault, so
    that a measured reaction time is never flattered. `seen_at`: the reading that last brought an attempt of the candidate.
    """

    evidence: Evidence = field(default_factory=Evidence)
    dispersion: Dispersion = field(default_factory=Dispersion)
    first_bad_at: float | None = None
    seen_at: float | None = None
    recent: Recent = field(default_factory=Recent)

    def to_json(self) -> dict[str, Any]:
        return {
            "evidence": self.evidence.to_json(),
            "dispersion": self.dispersion.to_json(),
            "first_bad_at": self.first_bad_at,
            "seen_at": self.seen_at,
            "recent": self.recent.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Watch:
        return cls(
            Evidence.from_json(value["evidence"]),
            Dispersion.from_json(value.get("dispersion", ())),
            value.get("first_bad_at"),
            value.get("seen_at"),
            Recent.from_json(value["recent"]) if "recent" in value else Recent(),
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
    "stage", "said", "gone_since", "asked_at", "is_promoting", "tick", "gap_at", "blind_since", "server_since", "server_base",
    "forgotten", "blind_at",
)  # fmt: skip


@dataclass(frozen=True)
class Carry:
    """Instants are seconds since the epoch (UTC).

    `readings` are the last ones by gateway, `external` those by guard that counts elsewhere; `tick` is the last one taken in.
    `step` counts since the gateways acknowledged this step's weight, `total` since the rollout began, `last` this tick's.
    `has_failed`: the last reading with attempts of the candidate held a failed one. `stage` names the step that the
    evidence belongs to, `said` the last recorded decision. `gone_since`: when the candidate was first found without a
    server; `asked_at`: when its deployment was last asked for. `is_promoting`: the route names the candidate as stable
    already, and its acknowledgement is awaited. `harm`: for each guard, the candidate's bad attempts beyond what it tolerates,
    in the stages before this one, and the variance of that number. `gap_at`: when counts of this stage were last lost.
    `blind_since`: since when no tick could be judged, `blind_at`: the last such tick. `forgotten`: how often evidence of a
    warm-up was dropped in this stage. `server_since`, `server_base`: when the candidate's newest server came,
    and how many attempts the candidate had had by then.
    """

    readings: Mapping[str, Reading] = field(default_factory=dict)
    external: Mapping[str, Reading] = field(default_factory=dict)
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
    tick: int = -1
    harm: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gap_at: float | None = None
    blind_since: float | None = None
    server_since: float | None = None
    server_base: int = 0
    forgotten: int = 0
    blind_at: float | None = None

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
    def from_json(cls, value: Mapping[str, Any]) -> Carry:
        """The state as it was kept; what an older version did not keep is as at the beginning."""
        arms: dict[str, Any] = {
            name: Arms.from_json(value[name]) for name in ("step", "total", "last") if name in value
        }
        read: dict[str, Any] = {
            "readings": {name: Reading.from_json(one) for name, one in value.get("readings", {}).items()},
            "external": {name: Reading.from_json(one) for name, one in value.get("external", {}).items()},
            "watches": {name: Watch.from_json(one) for name, one in value.get("watches", {}).items()},
            "failures": Failures.from_json(value.get("failures", [0, 0.0, 0.0])),
            "harm": {name: (one[0], one[1]) for name, one in value.get("harm", {}).items()},
        }
        return cls(**arms, **read, **{name: value[name] for name in _PLAIN if name in value})

    def entering(self, stage: str, at: float, policy: Policy) -> Carry:
        """Unchanged in the same stage. In another one a new weight was written, and evidence begins afresh.

        So a fault that only this weight brings is not outvoted by the steps before.
        """
        if stage == self.stage:
            return self
        watches = {name: replace(watch, evidence=Evidence(), seen_at=None) for name, watch in self.watches.items()}
        return replace(
            self, watches=watches, step=Arms(), stage=stage, commanded_at=at, candidate_seen_at=None,
            harm=self.harm_so_far(policy),            gap_at=None, forgotten=0,
        )  # fmt: skip

    def harm_so_far(self, policy: Policy) -> dict[str, tuple[float, float]]:
        """For each guard: bad attempts of the candidate beyond what it tolerates of stable's share at the same time
        (`roll_back_over`), and the variance of that number.
        """
        found, tolerances = dict(self.harm), {guard.name: guard.roll_back_over for guard in policy.guards}
        for name, watch in self.watches.items():
            seen, point = watch.evidence, watch.evidence.point(name)
            nc, nb, tolerated = seen.candidate, seen.stable, tolerances.get(name)
            if nc and nb and tolerated is not None:
                excess, variance = found.get(name, (0.0, 0.0))
                pooled = (point.bad_candidate + point.bad_stable) / (nc + nb)
                excess += point.bad_candidate - nc * tolerated.of(point.bad_stable / nb)
                found[name] = (excess, variance + pooled * (1 - pooled) * nc * (1 + tolerated.ratio**2 * nc / nb))
        return found

    def forgetting(self, guard: str) -> Carry:
        """Without this guard's evidence: it was of a server that was still warming up."""
        if guard not in self.watches:
            return self
        watches = {**self.watches, guard: replace(self.watches[guard], evidence=Evidence())}
        return replace(self, watches=watches, forgotten=self.forgotten + 1)

    def blinded(self, at: float, *, is_blind: bool) -> Carry:
        """With whether this tick could be judged taken in."""
        if not is_blind:
            return self if self.blind_since is None else replace(self, blind_since=None, blind_at=None)
        has_looked = self.blind_at is not None and at - self.blind_at <= LOOKED_WITHIN_S
        since = self.blind_since if has_looked and self.blind_since is not None else at
        return replace(self, blind_since=since, blind_at=at)

    def met_server(self, since: float | None) -> Carry:
        """With the instant taken in at which the candidate's newest server came."""
        if since is None or since == self.server_since:
            return self
        return replace(self, server_since=since, server_base=self.total.candidate.attempts)

    def acknowledged(self, at: float) -> Carry:
        """The gateways follow the weight: from here on its samples and its split count."""
        return replace(self, step=Arms(), candidate_seen_at=at)

    def looked_for_servers(self, at: float, candidate: int) -> Carry:
        """With the number of the candidate's serving servers taken in."""
        if candidate:
            return replace(self, gone_since=None)
        return replace(self, gone_since=at if self.gone_since is None else self.gone_since)


def absorb(
    carry: Carry,
    *,
    tick: int,
    readings: Mapping[str, Reading],
    policy: Policy,
    has_stable: bool,
    external: Mapping[str, Reading] | None = None,
) -> Carry:
    """The state with this tick's readings taken in: `readings` by gateway, `external` by guard that counts elsewhere.

    Total. A tick that was taken in before changes nothing; what happened meanwhile is in the next one's difference. No
    reading leaves all but `last` as it was.
    """
    if tick <= carry.tick:
        return carry
    external = external or {}
    news = _News.between(carry.readings, readings)
    watches = dict(carry.watches)
    for guard in policy.guards:
        if guard.source is Source.GATEWAY:
            own = news
        else:
            mine = {guard.name: external[guard.name]} if guard.name in external else {}
            own = _News.between(carry.external, mine)
        if own.parts:
            watch = watches.get(guard.name, Watch())
            watches[guard.name] = _watched(watch, guard, own, policy=policy, has_stable=has_stable)
    gap_at = news.read_at if _has_gap(carry.readings, readings) else carry.gap_at
    counted = _counted(carry, news, readings) if readings else {}
    elsewhere = {**carry.external, **external} if external else carry.external
    return replace(carry, tick=tick, watches=watches, external=elsewhere, last=news.arms, gap_at=gap_at, **counted)


def _has_gap(before: Mapping[str, Reading], now: Mapping[str, Reading]) -> bool:
    """Whether counts were lost: a gateway began anew, or its counters fell. What was read late is not lost."""
    pairs = [(before[name], reading) for name, reading in now.items() if name in before]
    return any(
        new.epoch != was.epoch or new.candidate.fell(was.candidate) or new.stable.fell(was.stable) for was, new in pairs
    )


@dataclass(frozen=True)
class _News:
    """What happened since the readings before: by source and in sum, and when that was read."""

    parts: Mapping[str, Reading]
    arms: Arms
    read_at: float
    before_at: Mapping[str, float]  # by source: when it was read before

    @classmethod
    def between(cls, before: Mapping[str, Reading], now: Mapping[str, Reading]) -> _News:
        parts = {name: difference(before.get(name), reading) for name, reading in now.items()}
        first, *others = [Arms(part.candidate, part.stable) for part in parts.values()] or [Arms()]
        arms = sum(others, first)
        read_at = max((reading.at for reading in now.values()), default=0.0)
        return cls(parts, arms, read_at, {name: before[name].at if name in before else read_at for name in now})


def _counted(carry: Carry, news: _News, readings: Mapping[str, Reading]) -> dict[str, Any]:
    """What changes with the gateways' counts: the sums of both arms and of users, and what the last attempts were like."""
    candidate, stable = news.arms.candidate, news.arms.stable
    return {
        "readings": {**carry.readings, **readings},
        "step": carry.step + news.arms,
        "total": carry.total + news.arms,
        "user_requests": carry.user_requests + sum(part.user_requests for part in news.parts.values()),
        "user_errors": carry.user_errors + sum(part.user_errors for part in news.parts.values()),
        "failures": carry.failures.after(news.read_at, candidate),
        "has_failed": candidate.bad.get(ERRORS, 0) > 0 if candidate.attempts else carry.has_failed,
        "is_stable_failing": _fails(stable) if stable.attempts else carry.is_stable_failing,
        "candidate_seen_at": news.read_at if candidate.attempts else carry.candidate_seen_at,
        "read_at": news.read_at,
    }


def _fails(counts: Counts) -> bool:
    return counts.attempts > 0 and counts.bad.get(ERRORS, 0) >= counts.attempts


def _watched(watch: Watch, guard: Guard, news: _News, *, policy: Policy, has_stable: bool) -> Watch:
    """The guard's watch with the news in it.

    Points that no gateway counts are left out. Without a stable only the objective is tested, so only at its own threshold.
    """
    candidate, stable = news.arms.candidate, news.arms.stable
    counted = [name for name in guard.points if name in candidate.bad or name in stable.bad] if has_stable else []
    bad = {
        name: (candidate.bad.get(name, 0), stable.bad.get(name, 0)) for name in dict.fromkeys((*counted, guard.name))
    }
    dispersion = watch.dispersion.after(
        news.read_at, bad, candidate.attempts, stable.attempts, window_s=policy.dispersion_window_s
    )
    tempering = {name: Tempering(watch.dispersion.phi(name), dispersion.phi(name)) for name in bad}
    own = bad[guard.name][0]
    first_bad_at = watch.first_bad_at
    if first_bad_at is None and own:
        # the reading before this one may be of another second at each gateway: the earliest of them is the safe one
        first_bad_at = min(
            news.before_at[name] for name, part in news.parts.items() if part.candidate.bad.get(guard.name, 0)
        )
    return Watch(
        evidence=watch.evidence.after(
            bad,
            candidate.attempts,
            stable.attempts,
            worse=guard.roll_back_over,
            fine=guard.promote_within,
            tempering=tempering,
            over=None if has_stable else guard.roll_back_over.of(guard.max_frac),
        ),
        dispersion=dispersion,
        first_bad_at=first_bad_at,
        seen_at=news.read_at if candidate.attempts else watch.seen_at,
        recent=watch.recent.after(news.read_at, own, candidate.attempts),
    )
