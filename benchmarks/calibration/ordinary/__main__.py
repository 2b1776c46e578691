"""Ordinary traffic that a judge may take for a fault, faults beside it, and the limit of each: walked through the engine's own decisions.

Run `python -m benchmarks.calibration.ordinary [--runs N] [--only PART] [--looks N] [--kept FILE] [--table]`. It prints one line for each
row: what became of N rollouts (40, unless a row states fewer), and whether the row's limit holds. Seeded: the same numpy brings the
same numbers. One core walks about 2,500 seconds of a rollout in a second, so a row of 40 takes up to a minute and a half.

`--kept` appends each rollout's end to a file, a line of JSON each, and walks no rollout that is there. So a command that was stopped
goes on where it was. `--table` walks nothing: it prints what is kept, as Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.cells import OBJECTIVES
from benchmarks.calibration.ordinary.fleet import FLEET, of_fleet
from benchmarks.calibration.ordinary.report import HEAD, HEAD_OF_FAULTS, in_markdown, told
from benchmarks.calibration.premises.scenario import (
    Answers,
    BadClient,
    Bursts,
    Cold,
    Fault,
    Replicas,
    Scenario,
    Wander,
)
from benchmarks.calibration.premises.walking import Ran, ran
from benchmarks.calibration.traffic import Latency, Spells

SEED, RUNS = 3201, 40
NORMAL = Latency()
MINUTE = 60
STANDARD = {"preset": "standard"}
FIVE, ONE = Fault(0.05), Fault(0.01)


@dataclass(frozen=True)
class Limit:
    """The bounds of a row; None: no bound. Shares in [0, 1], times in seconds."""

    rolled_back: float | None = None
    promoted: float | None = None
    promoted_after_s: float | None = None  # the median
    closed_s: tuple[float, float] | None = None  # no stage should open from when until when, after the first step began
    found_s: float | None = None  # of `found` of the runs, from the fault's onset
    found: float = 0.95


@dataclass(frozen=True)
class Row:
    """A scenario with its name, its limit, and the most runs that are worth walking."""

    name: str
    scenario: Scenario
    limit: Limit = Limit()
    runs: int = 1000
    drawn: Callable[[np.random.Generator], Scenario] | None = None  # each run's own scenario


def _usual(name: str, rate: float = 10.0, **more: Any) -> Scenario:
    """Both arms fail .3 % by themselves and .2 % wherever a request goes; failed attempts are tried again on stable."""
    usual: dict[str, Any] = {"base": (0.003,), "poison": 0.002, "retried": True, "policy": STANDARD}
    return Scenario("ordinary", name, rate, **usual | more)


def _timed(name: str, rate: float = 10.0, **more: Any) -> Scenario:
    return _usual(name, rate, objectives=OBJECTIVES, latency=NORMAL, **more)


def rows() -> list[Row]:
    """Every row, by the number of the defect; then faults, then traffic without trouble."""
    return [
        *_spells(),
        *_streams(),
        *_cold(),
        *_replicas(),
        *_stable_replica(),
        *_incidents(),
        *_seldom(),
        *_others(),
        *_faults(),
        *_well(),
        Row(
            f"fleet of {FLEET:,} different models",
            of_fleet(np.random.default_rng(SEED)),
            Limit(rolled_back=0.01),
            FLEET,
            of_fleet,
        ),
    ]


def _row(name: str, scenario: Scenario, **limit: Any) -> Row:
    return Row(name, replace(scenario, kind=name), Limit(**limit))


def _spells() -> list[Row]:
    """J1: one server an arm has rare bad spells, or its latency drifts."""
    minutes = 80 * MINUTE

    def one(name: str, frac: float, mean_s: float, of_time: float, **limit: Any) -> Row:
        spells = Spells(frac, mean_s, mean_s * (1 / of_time - 1))
        return _row(name, _usual("", horizon_s=minutes, an_arm=1, spells=spells), **limit)

    return [
        one("J1 spells: 20 % for 10 s, .2 % of the time", 0.2, 10, 0.002, rolled_back=0.05),
        one("J1 spells: 20 % for 10 s, 2 % of the time", 0.2, 10, 0.02),
        one("J1 spells: all for 3 s, .1 % of the time", 1.0, 3, 0.001),
        _row("J1 client on one arm, 30 to 200 errors in 8 s each 17 min",
             _usual("", horizon_s=minutes, retried=False, bad_client=BadClient(1020, 8, is_sticky=True))),
        _row("J1 latency drifts, 300 s, 10 %",
             _timed("", horizon_s=minutes, an_arm=1, wander=Wander(0.1, 300))),
    ]  # fmt: skip


def _streams() -> list[Row]:
    """J2: long streams, the candidate's a quarter longer."""
    return [
        _row("J2 streams of 60 s beside 75 s, sigma .05",
             _usual("", horizon_s=70 * MINUTE, answers=Answers(60, 0.05, 1.25)), rolled_back=0.01),
        _row("J2 streams of 60 s beside 75 s, sigma .25, 100/s",
             _usual("", 100.0, horizon_s=70 * MINUTE, answers=Answers(60, 0.25, 1.25)), rolled_back=0.01),
    ]  # fmt: skip


def _cold() -> list[Row]:
    """J3: each weight brings new servers, that are slow at first."""

    def one(name: str, cold: Cold, **limit: Any) -> Row:
        scenario = _timed("", horizon_s=80 * MINUTE, cold=replace(cold, each_weight=True))
        return _row(name, scenario, **limit)

    return [
        one("J3 cold: all slow for 15 s", Cold(1.0, 15), rolled_back=0.01),
        one("J3 cold: all slow for 5 s", Cold(1.0, 5), rolled_back=0.01),
        one("J3 cold: 30 % slow for 60 s", Cold(0.3, 60)),
        one("J3 cold: 5 % slow for 120 s", Cold(0.05, 120)),
        one("J3 cold: 5 % slow, fades in 120 s", Cold(0.05, 120, fades=True)),
        _row("J3 new server: twice as slow",
             _timed("", horizon_s=1500, slower=Latency(180), cold=Cold(0.0, 1, each_weight=True)), found_s=180),
        _row("J3 new server: 5 % five times as slow",
             _timed("", horizon_s=1500, slower=Latency(tail_frac=0.05), cold=Cold(0.0, 1, each_weight=True)), found_s=300),
    ]  # fmt: skip


def _replicas() -> list[Row]:
    """J4: the replica that comes with the last weight is bad."""
    return [
        _row(f"J4 the last of {count} replicas fails 30 % more",
             _usual("", horizon_s=70 * MINUTE, replicas=Replicas(count, 0.3)), rolled_back=0.05)
        for count in (2, 3)
    ] + [
        _row("J4 all of 2 replicas fail 5 % more",
             _usual("", horizon_s=20 * MINUTE, replicas=Replicas(2, 0.0), faults=(FIVE,)), found_s=35)
    ]  # fmt: skip


def _stable_replica() -> list[Row]:
    """A candidate that is worse than stable's good replicas, beside a stable release of which one replica in five is bad."""
    return [
        _row(f"replica of stable: one of 5 fails 20 % more, the candidate .8 %; {words}",
             _usual("", candidate_base=0.011, horizon_s=60 * MINUTE,
                    stable_replicas=Replicas(5, 0.2, is_counted=is_counted)))
        for is_counted, words in ((True, "counted by server"), (False, "not counted by server"))
    ]  # fmt: skip


def _incidents() -> list[Row]:
    """J5, J6, J9: incidents of both arms, of stable alone, and an incident that hits the candidate harder."""
    both = [
        _row(f"J5 both fail 30 % more for {seconds} s", _usual("", horizon_s=100 * MINUTE,
             faults=(Fault(0.3, 60, is_shared=True, for_s=seconds),)), rolled_back=0.0, promoted=0.95)
        for seconds in (600, 60)
    ]  # fmt: skip
    late = (Fault(0.3, 60, is_shared=True, for_s=180), Fault(0.05, 900))
    harder = (Fault(0.04, 60, is_shared=True, for_s=180), Fault(0.02, 60, for_s=180))
    return [
        *both,
        _row("J5 both fail 30 % more for 10 min in the bake", _usual("", horizon_s=140 * MINUTE,
             faults=(Fault(0.3, 300, in_bake=True, is_shared=True, for_s=600),)), rolled_back=0.0, promoted=0.95),
        _row("J5 +5 pp at 900 s, after 30 % of both for 180 s", _usual("", horizon_s=30 * MINUTE, faults=late), found_s=120),
        _row("J6 +5 pp at 1000 s, after stable failed 20 % for 120 s", _usual("", horizon_s=40 * MINUTE,
             faults=(Fault(0.2, 100, is_of_stable=True, for_s=120), Fault(0.05, 1000))), found_s=120),
        *(
            _row(f"J6 5 % five times as slow at 1000 s, {after}", _timed("", horizon_s=50 * MINUTE,
                 slow_times=(*before, Fault(0.05, 1000))), found_s=152)
            for after, before in (("stable undisturbed", ()), ("after 30 % of stable's were slow for 120 s",
                                  (Fault(0.3, 100, is_of_stable=True, for_s=120),)))
        ),
        _row("J6 +5 pp 60 s after stable failed half for 3 s", _usual("", horizon_s=20 * MINUTE,
             faults=(Fault(0.5, 100, is_of_stable=True, for_s=3), Fault(0.05, 160))), found_s=262),
        _row("J6 healthy, 30 % of stable's slow for 120 s", _timed("", horizon_s=140 * MINUTE, slow_times=(
             Fault(0.3, 300, is_of_stable=True, for_s=120),)), rolled_back=0.0, promoted=0.95),
        _row("J9 4 % of stable and 6 % of the candidate for 180 s, 100/s", _usual("", 100.0, horizon_s=80 * MINUTE,
             faults=harder, is_harmless=True), rolled_back=0.03),
    ]  # fmt: skip


def _seldom() -> list[Row]:
    """J7: few requests."""
    return [
        _row("J7 3 requests a second", _usual("", 0.15, horizon_s=8 * 60 * MINUTE),
             rolled_back=0.0, promoted_after_s=3.5 * 3600),
        _row("J7 20 requests a second", _usual("", 1.0, horizon_s=2 * 60 * MINUTE), promoted_after_s=55 * 60),
        _row("J7 +5 pp in the bake at 1/s in all",
             _usual("", 1.0, horizon_s=2 * 60 * MINUTE, faults=(Fault(0.05, 10, in_bake=True),))),
    ]  # fmt: skip


def _others() -> list[Row]:
    """J8, J10, J12, J13."""
    return [
        _row("J8 a tenant of 30 % fails 5 % wherever it goes", _usual("", base=(0.002,), poison=0.015,
             horizon_s=80 * MINUTE), promoted=0.95),
        _row("J8 +2 pp beside 5 % that fail anywhere", _usual("", poison=0.05, horizon_s=40 * MINUTE,
             faults=(Fault(0.02),)), found_s=400),
        _row("J8 a tenant of 5 % always fails", _usual("", base=(0.002,), poison=0.05, horizon_s=80 * MINUTE),
             rolled_back=0.0, promoted=0.95),
        *(
            _row(f"J8 outage: {share:.0%} of all requests fail wherever they go for 10 min, {rate:g}/s",
                 _usual("", rate, horizon_s=100 * MINUTE, faults=(Fault(share, 60, is_common=True, for_s=600),)),
                 rolled_back=0.0, promoted=0.95, closed_s=(70, 660))
            for share, rate in ((0.6, 10.0), (0.9, 10.0), (0.9, 1.0), (0.6, 1.0), (0.6, 2.0), (1.0, 10.0))
        ),
        _row("J10 bursts with a heavy tail", _usual("", base=(0.0,), poison=0.001, bursts=Bursts(0.003),
             horizon_s=120 * MINUTE), rolled_back=0.01),
        _row("J12 batches of 32 fail whole", _usual("", clump=32, horizon_s=120 * MINUTE), rolled_back=0.0),
        _row("J13 +5 pp in the last minute of the bake", _usual("", horizon_s=50 * MINUTE,
             faults=(Fault(0.05, 1740, in_bake=True),)), found_s=300),
        _row("J13 +1 pp in the last minute of the bake", _usual("", horizon_s=50 * MINUTE,
             faults=(Fault(0.01, 1740, in_bake=True),))),
    ]  # fmt: skip


def _faults() -> list[Row]:
    """Faults, with 1.2 times the earlier detection times as limits. The outage's is of the engine at 8e3a3a37 with these seeds."""
    bake = Fault(0.05, 10, in_bake=True)
    return [
        _row("fault +5 pp", _usual("", horizon_s=10 * MINUTE, faults=(FIVE,)), found_s=40),
        _row("fault +1 pp", _usual("", horizon_s=40 * MINUTE, faults=(ONE,)), found_s=494),
        _row("fault +5 pp in the bake", _usual("", horizon_s=20 * MINUTE, faults=(bake,)), found_s=28),
        _row("fault +60 pp in the bake", _usual("", horizon_s=20 * MINUTE, faults=(replace(bake, share=0.6),)), found_s=4),
        _row("fault +5 pp at 1/s", _usual("", 1.0, horizon_s=20 * MINUTE, faults=(FIVE,)), found_s=403),
        _row("fault slowest 5 % take five times as long",
             _timed("", horizon_s=10 * MINUTE, slower=Latency(tail_frac=0.05)), found_s=83),
        _row("fault outage of 1 s each minute", _usual("", horizon_s=60 * MINUTE,
             faults=(Fault(1.0, 60, every_s=60, on_s=1),)), found_s=1873),
        _row("fault +5 pp in batches of 32", _usual("", clump=32, horizon_s=40 * MINUTE,
             faults=(Fault(0.05, clump=32),)), found_s=1512),
    ]  # fmt: skip


def _well() -> list[Row]:
    """Traffic without trouble: at most 1 % may be rolled back."""
    return [
        _row("well: nothing happens", _usual("", horizon_s=80 * MINUTE), rolled_back=0.0, promoted=0.95),
        _row("well: at the tolerance", _usual("", candidate_base=0.0046, horizon_s=80 * MINUTE), rolled_back=0.0),
        _row("well: answers of 30 s, 100/s", _usual("", 100.0, retried=False, answers=Answers(30),
             horizon_s=80 * MINUTE), rolled_back=0.0, promoted=0.95),
        _row("well: stable fails 5 %, the candidate 2 %", _usual("", base=(0.05,), candidate_base=0.02, poison=0.0,
             horizon_s=80 * MINUTE), rolled_back=0.0, promoted=0.95),
        _row("well: a fifth of stable's slow for 60 s", _timed("", horizon_s=80 * MINUTE, slow_times=(
             Fault(0.2, 300, is_of_stable=True, for_s=60),)), rolled_back=0.0, promoted=0.95),
        _row("well: latency wanders, 60 s, 5 %", _timed("", horizon_s=80 * MINUTE, an_arm=1, wander=Wander(0.05, 60)),
             rolled_back=0.0, promoted=0.95),
    ]  # fmt: skip


# --- runs -------------------------------------------------------------------------------------------------------------


def walked(row: Row, run: int, looks: int | None = None) -> Ran:
    """Run number `run` of the row: the same however many are asked for. `looks`: of the policy's second look."""
    second = {} if looks is None else {"looks": looks}
    rng = np.random.default_rng([SEED, zlib.crc32(row.name.encode()), run])
    scenario = row.scenario if row.drawn is None else row.drawn(rng)
    return ran(replace(scenario, policy={**scenario.policy, "second_look": second}), rng, is_watched_on=False)


class Kept:
    """The ends of rollouts by row, looks and run, and the file with a line for each; None: no file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.runs = path, dict[tuple[str, int | None, int], Ran]()
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        for line in map(json.loads, lines):
            line["ran"] |= {"held": tuple(line["ran"]["held"]), "stages": tuple(line["ran"]["stages"])}
            self.runs[line["row"], line["looks"], line["run"]] = Ran(**line["ran"])

    def of(self, row: Row, runs: int, looks: int | None) -> list[Ran]:
        """Those of the row that are kept."""
        return [kept for run in range(runs) if (kept := self.runs.get((row.name, looks, run))) is not None]

    def walk(self, row: Row, run: int, looks: int | None) -> None:
        """Walks the run and keeps it, unless it is kept already."""
        if (row.name, looks, run) in self.runs:
            return
        ended = self.runs[row.name, looks, run] = walked(row, run, looks)
        if self.path is not None:
            line = {"row": row.name, "looks": looks, "run": run, "ran": {**asdict(ended), "others": {}}}
            with self.path.open("a") as file:
                file.write(f"{json.dumps(line)}\n")


def main() -> None:
    """Reads the command line; see the module's words."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration.ordinary", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"rollouts for each row ({RUNS})")
    parser.add_argument(
        "--only", nargs="*", default=[""], metavar="PART", help="rows whose name has one of these parts"
    )
    parser.add_argument("--looks", type=int, default=None, help="of the policy's second look (as the preset has it)")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="keep each rollout's end here, and go on from it")
    parser.add_argument("--table", action="store_true", help="walk nothing; print what is kept as Markdown")
    args = parser.parse_args()
    kept, chosen = Kept(args.kept), [row for row in rows() if any(part in row.name for part in args.only)]
    if args.table:
        for head, is_healthy in ((HEAD, True), (HEAD_OF_FAULTS, False)):
            some = [
                (row, kept.of(row, args.runs, args.looks)) for row in chosen if row.scenario.is_healthy is is_healthy
            ]
            print(head, *[in_markdown(row, runs) for row, runs in some if runs], "", sep="\n")
        return
    for row in chosen:
        began = time.monotonic()
        for run in range(min(row.runs, args.runs)):
            kept.walk(row, run, args.looks)
        print(f"{told(row, kept.of(row, args.runs, args.looks))}  ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
