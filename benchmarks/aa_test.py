"""Whether the A/A test sees the spells that it is there for, and keeps still on traffic that only looks like them.

Run `python -m benchmarks.aa_test [--runs N] [--quiet-runs N]`. Stable gets 20, 200 or 2,000 requests/s on 1, 2 or 20 servers,
0.5 % of which fail. Each run feeds an A/A test of its own with one count for every second, as the engine does.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from rollouts.core.aa_test import AATest
from rollouts.core.counter_deltas import ERRORS, Counts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
BASE = 0.005
#: Each server is unwell for this part of the time.
UNWELL = 0.02
HOUR_S = 3600
BEGIN = 1_700_000_000.0


@dataclass(frozen=True)
class Traffic:
    """Attempts and errors of stable, second by second."""

    attempts: Ints
    errors: Ints


def unwell(rng: np.random.Generator, last_s: int, mean_s: float, part: float = UNWELL) -> Floats:
    """The part of each second in which one server is unwell: spells of exponential lengths, well times between them too."""
    mean_well_s = mean_s * (1 - part) / part
    count = int(2 * last_s / mean_well_s) + 40
    lengths = np.stack([rng.exponential(mean_well_s, count), rng.exponential(mean_s, count)], axis=1).ravel()
    sick = np.tile([0.0, 1.0], count)
    if rng.random() < part:  # it begins unwell
        lengths, sick = lengths[1:], sick[1:]
    times, so_far = np.concatenate([[0.0], np.cumsum(lengths)]), np.concatenate([[0.0], np.cumsum(lengths * sick)])
    return np.diff(np.interp(np.arange(last_s + 1.0), times, so_far))


def with_shares(rng: np.random.Generator, rate: Floats, share: Floats) -> Traffic:
    """Independent requests at these rates per second, of which these shares fail."""
    errors = rng.poisson(rate * share)
    return Traffic(errors + rng.poisson(rate * (1 - share)), errors)


def spells(rng: np.random.Generator, last_s: int, rate: float, *, servers: int, fails: float, mean_s: float) -> Traffic:
    """Every server now and then fails a part of its requests for a while."""
    sick = sum((unwell(rng, last_s, mean_s) for _ in range(servers)), np.zeros(last_s))
    return with_shares(rng, np.full(last_s, rate), np.minimum(1.0, BASE + fails * sick / servers))


def alone(rng: np.random.Generator, last_s: int, rate: float) -> Traffic:
    return with_shares(rng, np.full(last_s, rate), np.full(last_s, BASE))


def clumps(rng: np.random.Generator, last_s: int, rate: float, *, size: int, is_fixed: bool) -> Traffic:
    """Errors fall in clumps, each at one instant."""
    events = rng.poisson(rate * BASE / size, last_s)
    errors = events * size
    if not is_fixed:
        errors = events.copy()
        some = events > 0
        errors[some] += rng.negative_binomial(events[some], 1 / size)
    return Traffic(errors + rng.poisson(rate * (1 - BASE), last_s), errors)


def swinging(
    rng: np.random.Generator, last_s: int, rate: float, *, period_s: float, power: float, times: float = 5.0
) -> Traffic:
    """Load that swings by `times`; errors rise with its power: 1 where the share stays the same, 2 where it follows the load."""
    depth = (times - 1) / (times + 1)
    swing = 1 + depth * np.sin(2 * math.pi * np.arange(last_s) / period_s + rng.uniform(0, 2 * math.pi))
    return with_shares(rng, rate * swing, BASE * swing ** (power - 1))


def incidents(
    rng: np.random.Generator, last_s: int, rate: float, *, every_s: int, fails: float = 0.05, for_s: int = 120
) -> Traffic:
    """All servers fail alike for `for_s` seconds, once at some instant of every `every_s`."""
    share = np.full(last_s, BASE)
    for begin in range(0, last_s, every_s):
        at = begin + int(rng.integers(0, every_s - for_s))
        share[at : at + for_s] = fails
    return with_shares(rng, np.full(last_s, rate), share)


def tenfold(rng: np.random.Generator, last_s: int, rate: float) -> Traffic:
    """Every tenth minute all servers fail ten times as often."""
    return incidents(rng, last_s, rate, every_s=600, fails=10 * BASE, for_s=60)


Kind = Callable[[np.random.Generator, int, float], Traffic]


def fed(traffic: Traffic) -> tuple[AATest, float | None]:
    """The A/A test after all that, and when it alarmed first (seconds), if ever."""
    test, episodes, alarmed_s = AATest(), 0, None
    pairs = zip(traffic.attempts.tolist(), traffic.errors.tolist(), strict=True)
    for tick, (attempts, errors) in enumerate(pairs, 1):
        test = test.after(tick, BEGIN + tick, Counts(attempts, attempts, {ERRORS: errors}))
        if test.episodes > episodes:
            episodes = test.episodes
            if test.alarm and alarmed_s is None:
                alarmed_s = float(tick)
    return test, alarmed_s


@dataclass(frozen=True)
class Told:
    """Of one kind of traffic: when each run alarmed (infinity: never), and how many episodes rejected."""

    alarmed_s: list[float]
    rejections: int
    episodes: int

    def __str__(self) -> str:
        found = np.array(self.alarmed_s)
        share, median = float(np.mean(np.isfinite(found))), float(np.median(found))
        after = f"{median / 60:4.0f} min" if math.isfinite(median) else "       –"
        return f"{share:7.1%} {after} {self.rejections / max(1, self.episodes):6.1%}"


def _run(kind: Kind, last_s: int, rate: float, seed: int) -> tuple[float, int, int]:
    test, alarmed_s = fed(kind(np.random.default_rng(seed), last_s, rate))
    return math.inf if alarmed_s is None else alarmed_s, test.rejections, test.episodes


def told(pool: ProcessPoolExecutor, kind: Kind, last_s: int, rate: float, runs: int) -> Told:
    found = list(pool.map(partial(_run, kind, last_s, rate), range(runs), chunksize=max(1, runs // 8)))
    return Told([one[0] for one in found], sum(one[1] for one in found), sum(one[2] for one in found))


HEAD = "alarms, median time, episodes that reject"


def spell_table(pool: ProcessPoolExecutor, runs: int, hours: int) -> Iterable[str]:
    yield f"Spells, 2 % of each server's time, {hours} h, {runs} runs: {HEAD}"
    yield f"{'':>26} {'20/s':>26} {'200/s':>26} {'2000/s':>26}"
    for fails in (0.2, 0.05):
        for servers in (1, 2, 20):
            for mean_s in (3.0, 10.0, 30.0, 120.0):
                kind = partial(spells, servers=servers, fails=fails, mean_s=mean_s)
                cells = [f"{told(pool, kind, hours * HOUR_S, rate, runs)!s:>26}" for rate in (20.0, 200.0, 2000.0)]
                yield f"{fails:>4.0%} {servers:>3} servers {mean_s:>4.0f} s   {' '.join(cells)}"


QUIET: dict[str, Kind] = {
    "errors alone": alone,
    "clumps of 8": partial(clumps, size=8, is_fixed=True),
    "geometric clumps, mean 5": partial(clumps, size=5, is_fixed=False),
    "load x5 in 30 min": partial(swinging, period_s=1800.0, power=1.0),
    "the same, share x5 too": partial(swinging, period_s=1800.0, power=2.0),
    "a day's curve": partial(swinging, period_s=86400.0, power=2.0, times=10.0),
    "5 % for 2 min in each 3 h": partial(incidents, every_s=3 * HOUR_S),
}
MAY_ALARM: dict[str, Kind] = {"x10 every tenth minute": tenfold}


def quiet_table(pool: ProcessPoolExecutor, runs: int, kinds: dict[str, Kind]) -> Iterable[str]:
    rates = (0.2, 20.0, 200.0, 2000.0)
    yield f"No spells, 24 h, {runs} runs: {HEAD}"
    yield f"{'':>26} " + " ".join(f"{f'{rate:g}/s':>26}" for rate in rates)
    for name, kind in kinds.items():
        cells = [f"{told(pool, kind, 24 * HOUR_S, rate, runs)!s:>26}" for rate in rates]
        yield f"{name:>26} {' '.join(cells)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--quiet-runs", type=int, default=100)
    parser.add_argument("--hours", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes) as pool:
        tables = []
        if given.runs:
            tables.append(spell_table(pool, given.runs, given.hours))
        if given.quiet_runs:
            tables.append(quiet_table(pool, given.quiet_runs, {**QUIET, **MAY_ALARM}))
        for line in chain.from_iterable(tables):
            print(line, flush=True)


if __name__ == "__main__":
    main()
