"""Which points there are, who is killed at which, and what came of it all."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ledger.adapters.linux_processes import die_with_parent
from tests.kills import checks
from tests.kills.points import AFTER, BEFORE, Point


@dataclass
class Played:
    """What came of one run. `trace`: the sites of the victim's writes in order; `problems`: what must not be."""

    history: checks.History = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    was_reached: bool = True
    takeover_s: float | None = None
    took_s: float = 0.0
    log: str = ""


class Victim(Protocol):
    """A process that is killed in one story. `kind` groups victims whose sites are the same product code."""

    kind: str
    name: str
    can_freeze: bool

    def make_template(self) -> None: ...
    def play(self, folder: Path, at: Point | None) -> Played: ...


TRIES = 5
PointsOf = dict[str, list[Point]]  # by the name of the victim
Target = tuple[str, Point]


@dataclass
class Outcome:
    victim: str
    kind: str
    point: Point
    played: Played

    @property
    def problems(self) -> list[str]:
        return self.played.problems


@dataclass
class Campaign:
    """Runs in `lanes` processes at a time. `victims` are prepared once, in this process.

    Another campaign of the same victims may be given what one has `undisturbed` and its `points`: it records only the rest.
    """

    victims: list[Victim]
    folder: Path
    lanes: int = field(default_factory=lambda: os.cpu_count() or 1)
    say: Callable[[str], None] = lambda _: None
    outcomes: list[Outcome] = field(default_factory=list)
    undisturbed: dict[str, Played] = field(default_factory=dict)
    points: PointsOf = field(default_factory=dict)
    chosen: list[Target] = field(default_factory=list)
    is_cut_off: bool = False
    took_s: float = 0.0

    def run(self, choose: Callable[[PointsOf], list[Target]]) -> None:
        """Records every victim's undisturbed run, lets `choose` pick from all points by victim, and plays what was picked.

        Whoever interrupts it cuts it off: what was played by then is kept.
        """
        began = time.monotonic()
        try:
            self._run(choose)
        except KeyboardInterrupt:
            self.is_cut_off = True
        self.took_s = time.monotonic() - began

    def _run(self, choose: Callable[[PointsOf], list[Target]]) -> None:
        new = [victim for victim in self.victims if victim.name not in self.undisturbed]
        for victim in new:
            victim.make_template()
            _VICTIMS[victim.name] = victim
        tie = die_with_parent(signal.SIGKILL)
        with multiprocessing.get_context("fork").Pool(self.lanes, _stand_apart, [tie]) as pool:
            self._record(pool, new)
            points = {victim.name: self.points[victim.name] for victim in self.victims}
            self.chosen = choose(points)
            self.say(f"{sum(map(len, points.values()))} points in {len(self.victims)} stories; {len(self.chosen)} runs")
            for outcome in self._play(pool, self.chosen):
                self.outcomes.append(outcome)
                for problem in outcome.problems:
                    self.say(f"✗ {outcome.victim}, {outcome.point}: {problem}")

    def _record(self, pool: Any, victims: list[Victim]) -> None:
        """Twice each: what is not the same in both is no property of the story."""
        jobs = [(victim.name, self.folder) for victim in victims for _ in range(2)]
        played = pool.starmap(_undisturbed, jobs, chunksize=1)
        for victim, one, two in zip(victims, played[::2], played[1::2], strict=True):
            problems = one.problems + two.problems or checks.differences(one.history, two.history)
            if problems:
                raise AssertionError(f"{victim.name}, undisturbed: {'; '.join(problems)}\n{one.log or two.log}")
            self.undisturbed[victim.name] = one
            self.points[victim.name] = list(points_of(one.trace, two.trace))

    def _play(self, pool: Any, chosen: list[Target]) -> Iterator[Outcome]:
        jobs = [(name, self.folder, point, self.undisturbed[name].history) for name, point in chosen]
        for done, outcome in enumerate(pool.imap_unordered(_judged, jobs, chunksize=1), 1):
            if done % 50 == 0:
                self.say(f"{done} of {len(jobs)} runs")
            yield outcome


def points_of(*traces: list[str]) -> Iterator[Point]:
    """Both sides of every write that all of the traces have, up to the last one that is more than a renewed lease."""
    least: Counter[str] = Counter(traces[0])
    for trace in traces[1:]:
        least &= Counter(trace)
    seen: Counter[str] = Counter()
    for site in _until_settled(traces[0]):
        seen[site] += 1
        if seen[site] <= least[site]:
            yield from (Point(site, seen[site], side) for side in (BEFORE, AFTER))


def _until_settled(trace: list[str]) -> list[str]:
    last = max((i for i, site in enumerate(trace) if not site.startswith("UPDATE ledger_lease")), default=-1)
    return trace[: last + 1]


def every(points: PointsOf) -> list[Target]:
    """Every point of every story."""
    return [(name, point) for name, its in points.items() for point in its]


def sample(seed: int, victims: Iterable[Victim], extra: int = 0) -> Callable[..., list[Target]]:
    """Each site of a kind of victim once on each side, at a story and a count drawn by the seed; then `extra` more points."""
    kinds = {victim.name: victim.kind for victim in victims}

    def choose(points: PointsOf) -> list[Target]:
        draw, strata = random.Random(seed), defaultdict(list)
        for name, point in every(points):
            strata[kinds[name], point.site, point.side].append((name, point))
        picked = [draw.choice(stratum) for stratum in strata.values()]
        others = [one for one in every(points) if one not in set(picked)]
        draw.shuffle(picked)
        return picked + draw.sample(others, min(extra, len(others)))

    return choose


def some(victims: list[Victim], seed: int, most: int) -> list[Victim]:
    """No more than `most` of each kind, drawn by the seed, in their order."""
    draw, drawn = random.Random(seed), set[str]()
    for kind in dict.fromkeys(victim.kind for victim in victims):
        names = [victim.name for victim in victims if victim.kind == kind]
        drawn.update(draw.sample(names, min(most, len(names))))
    return [victim for victim in victims if victim.name in drawn]


def changed_first(chosen: list[Target], modules: Iterable[str]) -> list[Target]:
    """The same in another order: first the sites in these modules (`rollouts.actions.transitions`), where a mistake may be new."""
    marks = tuple(f" @ {module}." for module in modules)
    return sorted(chosen, key=lambda target: not any(mark in target[1].site for mark in marks))


def first_of_each_kind(chosen: list[Target], victims: Iterable[Victim], most: int) -> list[Target]:
    """The same without those of a kind of victim that come after its first `most`."""
    kinds, seen = {victim.name: victim.kind for victim in victims}, Counter[str]()
    kept = []
    for name, point in chosen:
        seen[kinds[name]] += 1
        if seen[kinds[name]] <= most:
            kept.append((name, point))
    return kept


def frozen(chosen: list[Target]) -> list[Target]:
    """The same writes with the victim frozen instead of killed, once each: the instant after a write is that before the next."""
    return [
        (name, Point(point.site, point.nth, point.side, int(signal.SIGSTOP)))
        for name, point in chosen
        if point.side == BEFORE
    ]


#: What the processes of a campaign inherit when they are forked: victims hold functions, which do not travel.
_VICTIMS: dict[str, Victim] = {}


def _undisturbed(name: str, folder: Path) -> Played:
    return _VICTIMS[name].play(folder, None)


def _judged(job: tuple[str, Path, Point, checks.History]) -> Outcome:
    """One run; one that went past its point, as timing may have it, is tried again."""
    name, folder, point, undisturbed = job
    victim = _VICTIMS[name]
    for _ in range(TRIES):
        played = victim.play(folder, point)
        if played.problems or played.was_reached:
            break
    if played.history:
        played.problems += checks.differences(undisturbed, played.history)
    played.history = {}
    return Outcome(victim.name, victim.kind, point, played)


def _stand_apart(tie: Callable[[], None]) -> None:
    """A lane hears nothing of what ends its campaign, which is sent to all of its process group: it is ended by the campaign,
    or with it."""
    tie()
    os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


# --- what is told afterwards ------------------------------------------------------------------------------------------


def report(campaign: Campaign) -> dict[str, Any]:
    """Counts by kind of victim, and every run that went wrong."""
    kinds = {}
    for kind in dict.fromkeys(victim.kind for victim in campaign.victims):
        names = {victim.name for victim in campaign.victims if victim.kind == kind}
        points = [point for name in names for point in campaign.points.get(name, [])]
        runs = [one for one in campaign.outcomes if one.kind == kind]
        reached = [one for one in runs if one.played.was_reached]
        takeovers = sorted(one.played.takeover_s for one in runs if one.played.takeover_s is not None)
        kinds[kind] = {
            "stories": len(names),
            "sites": len({point.site for point in points}),
            "writes": len(points) // 2,
            "points": len(points),
            "runs": len(runs),
            "killed": sum(one.point.how == signal.SIGKILL for one in reached),
            "frozen": sum(one.point.how == signal.SIGSTOP for one in reached),
            "unreached": len(runs) - len(reached),
            "sites_hit": len({(one.point.site, one.point.side) for one in reached}),
            "wrong": sum(bool(one.problems) for one in runs),
            "takeover_p50_s": round(statistics.median(takeovers), 3) if takeovers else None,
            "takeover_max_s": round(takeovers[-1], 3) if takeovers else None,
        }
    wrong = [
        {"victim": one.victim, **one.point.to_json(), "problems": one.problems, "log": one.played.log}
        for one in campaign.outcomes
        if one.problems
    ]
    return {
        "kinds": kinds,
        "took_s": round(campaign.took_s, 1),
        "is_cut_off": campaign.is_cut_off,
        "not_run": len(campaign.chosen) - len(campaign.outcomes),
        "wrong": wrong,
    }


def missed(found: dict[str, Any]) -> list[str]:
    """Kinds whose runs went past their points more often than timing makes them: what they say is of too few points.

    Timing may go past one in ten; of the control plane, whose gateways acknowledge as they like, three in ten. More than that
    by three standard deviations, since a sample of eight runs goes past half of them now and then.
    """
    kinds = []
    for kind, counts in found["kinds"].items():
        runs, reached = counts["runs"], counts["killed"] + counts["frozen"]
        share = 0.7 if kind == "control plane" else 0.9
        if reached < runs * share - 3 * math.sqrt(runs * share * (1 - share)):
            kinds.append(f"{kind}: only {reached} of {runs} runs reached their point")
    return kinds


def table(found: dict[str, Any]) -> str:
    """The counts as lines of a Markdown table."""
    rows = list(found["kinds"].items())
    columns = list(rows[0][1])
    lines = [f"| victim | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 1)}"]
    lines += [f"| {kind} | {' | '.join(str(row[column]) for column in columns)} |" for kind, row in rows]
    return "\n".join(lines)


def by_site(campaign: Campaign) -> str:
    """How many points each site has, and how many of their runs went wrong."""
    points = Counter((point.site) for its in campaign.points.values() for point in its)
    wrong = Counter(one.point.site for one in campaign.outcomes if one.problems)
    return "\n".join(f"{count:5d} points, {wrong[site]} wrong: {site}" for site, count in sorted(points.items()))
