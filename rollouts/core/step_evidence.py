"""What one step's windows show of one guard: the counts, and the evidence of each counter. Kept from tick to tick, also as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rollouts.core.evidence import (
    PLAIN,
    ZERO,
    Scatter,
    Side,
    Sums,
    Tolerance,
    Window,
    added,
    fixed_sums,
    increments,
    onset_mixed,
    onset_step,
)


class Convincing(NamedTuple):
    """The windows since the candidate last looked no worse than tolerated, and their log E: the counts that convince."""

    counts: Window = Window(0, 0, 0, 0)
    sums: Sums = ZERO

    def after(self, windows: Iterable[Window], more: Sums) -> Convincing:
        """With a tick's windows in it; nothing once no alternative has any evidence left."""
        sums = added([self.sums, more])
        if max(sums) <= 0:
            return Convincing()
        return Convincing(Window(*map(sum, zip(self.counts, *windows, strict=True))), sums)

    def to_json(self) -> list[Any]:
        return [[round(one, 3) for one in part] for part in (self.counts, self.sums)]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Convincing:
        return cls(Window(*value[0]), tuple(value[1]))


class Point(NamedTuple):
    """A counter's evidence: log M of the side that rolls back, plain sums of the side that promotes, and the bad attempts."""

    worse: Sums = ()  # until the first window with evidence
    fine: Sums = ZERO
    bad_candidate: int = 0
    bad_stable: int = 0
    convincing: Convincing = Convincing()
    candidate: int = 0
    stable: int = 0

    @property
    def window(self) -> Window:
        return Window(self.bad_candidate, self.candidate, self.bad_stable, self.stable)

    def to_json(self) -> list[Any]:
        kept = [self.convincing.to_json()] if self.convincing.counts.candidate else []
        return [_rounded(self.worse), _rounded(self.fine), self.bad_candidate, self.bad_stable, *kept]

    @classmethod
    def from_json(cls, value: Sequence[Any], candidate: int = 0, stable: int = 0) -> Point:
        worse, fine, bad_candidate, bad_stable, *kept = value
        convincing = Convincing.from_json(kept[0]) if kept else Convincing()
        return cls(tuple(worse), tuple(fine), bad_candidate, bad_stable, convincing, candidate, stable)


@dataclass(frozen=True)
class Part:
    """A gateway's counts in a tick: all attempts, and by counter the bad ones of the candidate and of stable.

    `attempts` are those of a counter, if they are others: the answers that callers did not wait for
    are unknown. `own` are those of the candidate's bad ones that are held against it, and those of
    stable's that they are compared with, where these are not all.
    """

    candidate: int
    stable: int
    bad: Mapping[str, tuple[int, int]]
    own: tuple[float, float] | None = None
    gateway: str = ""
    attempts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def window(self, name: str) -> Window:
        (bad, bad_stable), (candidate, stable) = self.bad[name], self.attempts_at(name)
        return Window(bad, candidate, bad_stable, stable)

    def own_window(self, name: str) -> Window:
        """With the failures that are held against the candidate in place of all its failures."""
        (bad, bad_stable), (candidate, stable) = self.own or self.bad[name], self.attempts_at(name)
        return Window(bad, candidate, bad_stable, stable)

    def attempts_at(self, name: str) -> tuple[int, int]:
        """The attempts of both arms that the counter's bad ones are counted among."""
        return self.attempts.get(name, (self.candidate, self.stable))

    def of(self, names: Iterable[str]) -> Part:
        """With these counters alone."""
        names = list(names)
        attempts = {name: self.attempts[name] for name in names if name in self.attempts}
        return replace(self, bad={name: self.bad[name] for name in names}, attempts=attempts)

    def and_then(self, more: Part) -> Part:
        """One window out of two, for the counters of `more`."""
        known = {name: name in self.bad for name in more.bad}
        bad = {name: _sum(self.bad[name], pair) if known[name] else pair for name, pair in more.bad.items()}
        own = _sum(self.own, more.own) if self.own and more.own else more.own
        candidate, stable = self.candidate + more.candidate, self.stable + more.stable
        attempts = {
            name: _sum(self.attempts_at(name), more.attempts_at(name)) if is_known else more.attempts_at(name)
            for name, is_known in known.items()
        }
        others = {name: pair for name, pair in attempts.items() if pair != (candidate, stable)}
        return Part(candidate, stable, bad, own, more.gateway, others)

    def to_json(self) -> list[Any]:
        attempts = [dict(self.attempts)] if self.attempts else []
        return [self.candidate, self.stable, dict(self.bad), self.own and _rounded(self.own), self.gateway, *attempts]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Part:
        candidate, stable, bad, own, gateway, *attempts = value
        counts, others = (
            {name: (one[0], one[1]) for name, one in pairs.items()} for pairs in (bad, *(attempts or [{}]))
        )
        return cls(candidate, stable, counts, (own[0], own[1]) if own else None, gateway, others)


#: A candidate that fares better than stable, not only as well.
BETTER = Tolerance()


@dataclass(frozen=True)
class Evidence:
    """Evidence of one step for one guard: the counters at its points. `candidate` and `stable` are the attempts of its own counter.

    `ticks` counts the windows in which both arms (or, without a stable, the candidate) had attempts. `better` are the sums
    against "the candidate is no better than stable", of the guard's own counter. `own` are the bad attempts that are held against each
    arm, where these are not all of that counter. `waiting` are the gateways' windows in which an arm has had no attempt
    yet. Each stays open, at each point, until both have, so that few requests are no reason to lose stable's counts.
    """

    points: Mapping[str, Point] = field(default_factory=dict)
    candidate: int = 0
    stable: int = 0
    ticks: int = 0
    better: Sums = ZERO
    own: tuple[float, float] | None = None
    waiting: tuple[Part, ...] = ()

    def after(
        self,
        parts: Sequence[Part],
        *,
        worse: Tolerance,
        fine: Tolerance,
        name: str,
        scatter: Mapping[str, Scatter] | None = None,
        over: float | None = None,
    ) -> Evidence:
        """With one tick's windows in it, one for each gateway; `name` is the guard's own counter.

        Without a stable the candidate is held to the fixed share `over` instead of to `worse`.
        """
        both, waiting = ([], ()) if over is not None else self._windows(parts)
        candidate, stable = (sum(part.attempts_at(name)[arm] for part in parts) for arm in (0, 1))
        says = bool(both) if over is None else candidate > 0
        ticks, points, better = self.ticks + says, dict(self.points), self.better
        for point in dict.fromkeys(one for part in parts for one in part.bad):
            old = self.points.get(point, _NOTHING)
            news = [old.window, *(part.window(point) for part in parts)]
            closed = [part for part in (both if over is None else parts) if point in part.bad]
            log_m, sums, convincing = old.worse, old.fine, old.convincing
            if says:
                more = self._more(closed, point, worse, (scatter or {}).get(point, PLAIN), over)
                log_m = onset_step(log_m, more, ticks)
                convincing = convincing.after([part.own_window(point) for part in closed], more)
            if over is None and closed:
                sums = added([sums, *(increments(part.window(point), fine, Side.FINE) for part in closed)])
            if over is None and closed and point == name:
                better = added([better, *(increments(part.window(name), BETTER, Side.FINE) for part in closed)])
            xc, nc, xb, nb = map(sum, zip(*news, strict=True))
            points[point] = Point(log_m, sums, int(xc), int(xb), convincing, int(nc), int(nb))
        own = self.own
        if any(part.own is not None for part in parts):
            windows, mine = [part.own_window(name) for part in parts], self.own_bad(name)
            own = mine[0] + sum(one.bad_candidate for one in windows), mine[1] + sum(one.bad_stable for one in windows)
        return Evidence(points, self.candidate + candidate, self.stable + stable, ticks, better, own, waiting)

    @staticmethod
    def _more(
        parts: Sequence[Part],
        point: str,
        worse: Tolerance,
        scatter: Scatter,
        over: float | None,
    ) -> Sums:
        """The tick's evidence of a counter on the side that rolls back."""
        if over is not None:
            bad, candidate, *_ = map(sum, zip(*(part.window(point) for part in parts), strict=True))
            before, now = scatter.candidate, max(scatter.candidate, scatter.candidate_now)
            sums = [fixed_sums(bad / phi, candidate / phi, over, Side.WORSE) for phi in (before, now)]
            return tuple([min(pair) for pair in zip(*sums, strict=True)])
        return scatter.of([part.own_window(point) for part in parts], worse)

    def _windows(self, parts: Sequence[Part]) -> tuple[list[Part], tuple[Part, ...]]:
        """The windows that close now, and those that stay open."""
        waiting, closed = {part.gateway: part for part in self.waiting}, []
        for part in parts:
            before = waiting.pop(part.gateway, None)
            whole = part if before is None else before.and_then(part)
            attempts = {name: whole.attempts_at(name) for name in whole.bad}
            if full := [name for name, arms in attempts.items() if min(arms) > 0]:
                closed.append(whole.of(full))
            if rest := [name for name, arms in attempts.items() if min(arms) == 0 < max(arms)]:
                waiting[part.gateway] = whole.of(rest)
        return closed, tuple(waiting.values())

    def own_bad(self, name: str) -> tuple[float, float]:
        """The bad attempts that are held against the candidate, and against stable; `name` is the guard's own counter."""
        point = self.point(name)
        return (point.bad_candidate, point.bad_stable) if self.own is None else self.own

    def point(self, name: str) -> Point:
        """Evidence of one counter; empty if it never counted."""
        return self.points.get(name, _NOTHING)

    def log_e_worse(self, name: str) -> float:
        """The evidence of one counter that the candidate is worse, or over the fixed share, whenever that began."""
        return onset_mixed(self.point(name).worse, self.ticks)

    def to_json(self) -> dict[str, Any]:
        points = {name: point.to_json() for name, point in self.points.items()}
        counts = [self.candidate, self.stable, self.ticks]
        found: dict[str, Any] = {"points": points, "counts": counts, "better": _rounded(self.better)}
        attempts = {name: [point.candidate, point.stable] for name, point in self.points.items()}
        if others := {name: one for name, one in attempts.items() if one != counts[:2]}:
            found["attempts"] = others
        if self.own is not None:
            found["own"] = _rounded(self.own)
        if self.waiting:
            found["waiting"] = [part.to_json() for part in self.waiting]
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Evidence:
        """Nothing known for a state of another shape: evidence begins afresh."""
        if "points" not in value:
            return cls()
        candidate, stable, ticks = value["counts"]
        attempts = value.get("attempts", {})
        points = {
            name: Point.from_json(point, *attempts.get(name, (candidate, stable)))
            for name, point in value["points"].items()
        }
        own = tuple(value["own"]) if "own" in value else None
        waiting = tuple(Part.from_json(part) for part in value.get("waiting", ()))
        return cls(points, candidate, stable, ticks, tuple(value.get("better", ZERO)), own, waiting)


_NOTHING = Point()


def _sum(pair: tuple[Any, Any], more: tuple[Any, Any]) -> tuple[Any, Any]:
    return pair[0] + more[0], pair[1] + more[1]


def _rounded(sums: Sequence[float]) -> list[float]:
    return [round(one, 6) for one in sums]
