"""One guard between two ticks: its evidence in this step, how its counts scatter, and what has been seen of it of late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollouts.core.blast_radius import ExcessFailures
from rollouts.core.counter_deltas import COMMON, Arms, Counts, Reading, difference
from rollouts.core.dispersion import Dispersion
from rollouts.core.evidence import Scatter
from rollouts.core.policy import Guard, Policy
from rollouts.core.stable_minute import StableMinute
from rollouts.core.step_evidence import Evidence, Part

#: `Recent` covers the last 5 to 10 seconds.
HALF_S = 5.0
#: A server that warms up is slow among its first attempts, if it is so at all: whole readings until there are so many. If 5 %
#: more of them are slow than usual, these show no more than `standard` tolerates in 1 run of 800; a hundred did in 1 of 40.
FIRST_ATTEMPTS = 200
#: Before the candidate's own attempts tell, it is taken to have met as many requests that fail wherever they go as stable, in so
#: many attempts. More finds a regression beside such requests sooner, and blames a candidate sooner that fails on other
#: requests than stable, but on no more of them. Source: docs/premises.md, "poison" and "swapped".
ALIKE = 30


#: Requests that fail wherever they go, and attempts, of the candidate and of stable.
Common = tuple[int, int, int, int]


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
class GuardTracker:
    """One guard's evidence in this stage, the scatter of its counters, and when the candidate was first seen bad.

    `first_bad_at` is the last reading without a bad attempt, not the first with one: no earlier instant can have shown the
    fault, so that a measured reaction time is never flattered.
    """

    evidence: Evidence = field(default_factory=Evidence)  # of this stage
    dispersion: Dispersion = field(default_factory=Dispersion)  # how its counters scatter, over the whole rollout
    first_bad_at: float | None = None  # the last reading before the candidate's first bad attempt
    seen_at: float | None = None  # the reading that last brought an attempt of the candidate in this stage
    recent: Recent = field(default_factory=Recent)  # the candidate's attempts of the last seconds
    harm: Mapping[str, ExcessFailures] = field(default_factory=dict)  # by gateway: its cost in this stage
    first: tuple[int, int] = (0, 0)  # bad ones among the first attempts of the newest server, and how many these were
    common: Common = (0, 0, 0, 0)  # over the whole rollout
    minute: StableMinute = field(default_factory=StableMinute)  # what stable did in the last one
    forced: int = 0  # readings of this stage that give no evidence of time, because a release was forced
    was_forced: bool = False  # in the last reading

    def to_json(self) -> dict[str, Any]:
        return {
            "evidence": self.evidence.to_json(),
            "dispersion": self.dispersion.to_json(),
            "first_bad_at": self.first_bad_at,
            "seen_at": self.seen_at,
            "recent": self.recent.to_json(),
            "harm": {name: one.to_json() for name, one in self.harm.items() if one.candidate},
            "first": list(self.first),
            "common": list(self.common),
            **({"minute": self.minute.to_json()} if self.minute.parts else {}),
            **({"forced": [self.forced, self.was_forced]} if self.forced or self.was_forced else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GuardTracker:
        return cls(
            Evidence.from_json(value["evidence"]),
            Dispersion.from_json(value.get("dispersion", ())),
            value.get("first_bad_at"),
            value.get("seen_at"),
            Recent.from_json(value["recent"]) if "recent" in value else Recent(),
            {name: ExcessFailures.from_json(one) for name, one in value.get("harm", {}).items()},
            tuple(value.get("first", (0, 0))),
            tuple(value.get("common", (0, 0, 0, 0))),
            StableMinute.from_json(value.get("minute", ())),
            *value.get("forced", (0, False)),
        )


@dataclass(frozen=True)
class CounterNews:
    """What happened since the readings before: by source and in sum, and when that was read.

    `whole` is the sum with what began under other weights; `settled_parts` are of the sources whose answers come as steadily as
    their requests: only there is the share of bad ones among what ended that of all.
    """

    parts: Mapping[str, Reading]
    arms: Arms
    whole: Arms
    settled_parts: tuple[Arms, ...]
    read_at: float
    before_at: Mapping[str, float]  # by source: when it was read before

    @classmethod
    def between(cls, before: Mapping[str, Reading], now: Mapping[str, Reading]) -> CounterNews:
        parts = {name: difference(before.get(name), reading) for name, reading in now.items()}
        arms = _summed([Arms(part.candidate, part.stable) for part in parts.values()])
        whole = _summed([Arms(*(part.whole or (part.candidate, part.stable))) for part in parts.values()])
        settled = tuple([Arms(part.candidate, part.stable) for part in parts.values() if part.is_settled])
        read_at = max((reading.at for reading in now.values()), default=0.0)
        return cls(
            parts, arms, whole, settled, read_at, {name: before[name].at if name in before else read_at for name in now}
        )

    @property
    def settled(self) -> Arms:
        """Their sum."""
        return _summed(self.settled_parts)


def _summed(parts: Sequence[Arms]) -> Arms:
    """Mostly there is one gateway: then nothing is added up, in every tick of every rollout."""
    first, *others = parts or [Arms()]
    return sum(others, first)


def watched(watch: GuardTracker, guard: Guard, news: CounterNews, *, policy: Policy, has_stable: bool) -> GuardTracker:
    """The guard's watch with the news in it.

    Points that no gateway counts are left out. Without a stable only the objective is tested, so only at its own threshold.
    Gateways at which answers are still on their way since the last change of weight add no evidence. Nor does any gateway
    add evidence of time while a release is forced, or just was: users waited behind that request on one release alone.
    """
    is_forced = any(part.is_forced for part in news.parts.values())
    if guard.kind.has_thresholds and (is_forced or watch.was_forced):
        return replace(watch, forced=watch.forced + 1, was_forced=is_forced, seen_at=news.read_at)
    arms = news.arms
    if not arms.candidate.bad and not arms.stable.bad:
        return watch  # counts were lost, or never there
    counted = [one for one in guard.points if one in arms.candidate.bad or one in arms.stable.bad] if has_stable else []
    names = tuple(dict.fromkeys((*counted, guard.name)))
    bad = {name: (arms.candidate.bad.get(name, 0), arms.stable.bad.get(name, 0)) for name in names}
    candidate, stable = _attempts(guard, arms.candidate), _attempts(guard, arms.stable)
    settled = {name: part for name, part in news.parts.items() if part.is_settled}
    owns = {name: _own(guard, part, watch.common, has_stable=has_stable) for name, part in settled.items()}
    dispersion = watch.dispersion
    if len(settled) == len(
        news.parts
    ):  # when answers set in, their number jumps, and failures before look like a clump
        dispersion = dispersion.after(news.read_at, bad, candidate, stable, window_s=policy.dispersion_window_s)
    (was, was_stable), (now, now_stable) = [
        ({name: one.phi(name) for name in names}, {name: one.phi_stable(name) for name in names})
        for one in (watch.dispersion, dispersion)
    ]
    common = arms.candidate.bad.get(COMMON, 0) if has_stable and guard.kind.is_failure else 0
    minute = _minute(watch, guard, news.read_at, settled, owns, dispersion)
    is_over = watch.minute.has_lasted and not minute.is_over  # an incident that has ended: nothing of it is kept
    return GuardTracker(
        evidence=Evidence()
        if is_over
        else watch.evidence.after(
            [_part(guard, names, part, owns[name], name) for name, part in settled.items()],
            worse=guard.roll_back_over,
            fine=guard.promote_within,
            name=guard.name,
            scatter={name: Scatter(was[name], was_stable[name], now[name], now_stable[name]) for name in names},
            over=None if has_stable else guard.roll_back_over.of(guard.max_frac),
        ),
        dispersion=minute.calm if is_over else dispersion,
        first_bad_at=_first_bad_at(watch, guard, news),
        seen_at=news.read_at if candidate else watch.seen_at,
        recent=watch.recent.after(news.read_at, bad[guard.name][0], candidate),
        harm={**watch.harm, **_harm(watch, guard, settled, owns)},
        minute=minute,
        common=_added(watch.common, (common, candidate, arms.stable.bad.get(COMMON, 0), stable)),
        forced=watch.forced,
        first=_first(watch.first, bad[guard.name][0], candidate),
    )


def _harm(
    watch: GuardTracker, guard: Guard, settled: Mapping[str, Reading], owns: Mapping[str, tuple[float, float]]
) -> dict[str, ExcessFailures]:
    found = {}
    for name, part in settled.items():
        (bad, bad_stable), arms = owns[name], (part.candidate, part.stable)
        attempts, stable = (_attempts(guard, one) for one in arms)
        news = ExcessFailures(bad, attempts, bad_stable, stable)
        found[name] = watch.harm.get(name, ExcessFailures()).after(news, guard.roll_back_over)
    return found


def _minute(
    watch: GuardTracker,
    guard: Guard,
    read_at: float,
    settled: Mapping[str, Reading],
    owns: Mapping[str, tuple[float, float]],
    dispersion: Dispersion,
) -> StableMinute:
    bad = sum(stable for _, stable in owns.values())
    attempts = sum(_attempts(guard, part.stable) for part in settled.values())
    limit = guard.roll_back_over.of(guard.max_frac)
    all_bad = sum(part.stable.bad.get(guard.name, 0) for part in settled.values())
    return watch.minute.after(
        read_at, bad, attempts, name=guard.name, limit=limit, dispersion=dispersion, all_bad=all_bad
    )


def _attempts(guard: Guard, counts: Counts) -> int:
    """The attempts that the guard's bad ones are counted among."""
    return guard.kind.attempts(counts, guard.name)


def _first(known: tuple[int, int], bad: int, attempts: int) -> tuple[int, int]:
    return (known[0] + bad, known[1] + attempts) if known[1] < FIRST_ATTEMPTS else known


def _added(known: Common, more: Common) -> Common:
    return (known[0] + more[0], known[1] + more[1], known[2] + more[2], known[3] + more[3])


def _part(guard: Guard, names: Sequence[str], part: Reading, own: tuple[float, float], gateway: str) -> Part:
    """One gateway's tick, as evidence. Errors have one counter; other guards' points are judged as they were counted."""
    arms = part.candidate, part.stable
    bad = {name: (arms[0].bad.get(name, 0), arms[1].bad.get(name, 0)) for name in names}
    held = own if guard.kind.is_failure else None
    own_attempts = _attempts(guard, arms[0]), _attempts(guard, arms[1])
    others = {name: (guard.kind.attempts(arms[0], name), guard.kind.attempts(arms[1], name)) for name in names}
    return Part(
        *own_attempts, bad, held, gateway, {name: pair for name, pair in others.items() if pair != own_attempts}
    )


def _own(guard: Guard, part: Reading, known: Common, *, has_stable: bool) -> tuple[float, float]:
    """The bad attempts of one gateway's tick that are held against the candidate, and those of stable beside them.

    A request that fails wherever it goes is held against nobody: of the candidate's errors those count that a second attempt
    on stable could save, or that had none. Of stable's errors its second attempts tell nothing, as they go to stable again;
    of those that failed twice the candidate's share of common ones, beside stable's share of them, are taken to be common.
    `known`: common failures and attempts before this tick, of the candidate and of stable.
    """
    candidate, stable = part.candidate.bad, part.stable.bad
    bad = candidate.get(guard.name, 0), stable.get(guard.name, 0)
    if not has_stable or not guard.kind.is_failure:
        return bad
    as_stable = known[0] * known[3] / known[2] if known[2] else 0.0  # attempts in which stable has so many
    told = min(1.0, (as_stable + ALIKE) / (known[1] + ALIKE))
    return bad[0] - candidate.get(COMMON, 0), bad[1] - told * stable.get(COMMON, 0)


def _first_bad_at(watch: GuardTracker, guard: Guard, news: CounterNews) -> float | None:
    """The reading before this one may be of another second at each gateway: the earliest of them is the safe one."""
    if watch.first_bad_at is not None:
        return watch.first_bad_at
    bad = [name for name, part in news.parts.items() if part.candidate.bad.get(guard.name, 0)]
    return min((news.before_at[name] for name in bad), default=None)
