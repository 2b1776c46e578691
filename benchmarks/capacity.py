"""How often the capacity search claims too much, how close it comes, and how long it takes, on simulated servers.

Run `python -m benchmarks.capacity [--searches 80] [--first-seed 20000]`; some three minutes on one core. Seeded; the search's constants
were chosen on seeds below 1000. Each server's true limit, the greatest rate at which 99 % of the requests are within
the objective, is found first in runs of 20,000 s. Claims are in parts of it: none is a search that proved nothing and
counts as 0 in the median; too much is a claim above the limit. Seconds are of simulated load. Then the gate's verdict, passed / failed of
all, on releases that declare a part of the limit: up to 1 a failure is an error, beyond it a pass is one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from validators.core.capacity import Measured, judge_capacity
from validators.core.capacity_search import HOPELESS_AFTER_S, Ended, Run, SearchPlan, Step, is_hopeless, next_step
from validators.core.envelope import judged as with_envelope
from validators.core.load import arrivals, summarise
from validators.core.verdict import Verdict

Floats = npt.NDArray[np.float64]
#: (seconds at which requests are due, dice) → seconds until each is answered.
Server = Callable[[Floats, np.random.Generator], Floats]
FIRST_SEED, _TRUTH_S, _TRUTH_SEED = 20_000, 20_000.0, 99
#: What envelopes declare, in parts of the true limit.
DECLARED = (0.5, 0.8, 0.95, 1.1, 1.25, 1.5)


def one_queue(cv: float, mean_s: float = 0.01) -> Server:
    """One server that takes times of a lognormal distribution, first come, first served (M/G/1)."""

    def latencies(due: Floats, dice: np.random.Generator) -> Floats:
        variance = math.log1p(cv**2)
        work = dice.lognormal(math.log(mean_s) - variance / 2, math.sqrt(variance), len(due))
        done = np.cumsum(work)
        return done + np.maximum.accumulate(due - (done - work)) - due  # Lindley's recursion, solved

    return latencies


def batches(most: int, alone_s: float, each_s: float) -> Server:
    """One server that takes all who wait, up to so many at once, which takes `alone_s` and `each_s` more for each."""

    def latencies(due: Floats, dice: np.random.Generator) -> Floats:
        out, at, free = np.empty_like(due), 0, 0.0
        while at < len(due):
            start = max(free, due[at])
            end = min(at + most, max(at + 1, int(np.searchsorted(due, start, side="right"))))
            free = start + alone_s + each_s * (end - at)
            out[at:end] = free - due[at:end]
            at = end
        return out

    return latencies


def stalling(server: Server, every_s: float, stall_s: float) -> Server:
    """The same, and all that are due in a stall are answered after it at the earliest."""

    def latencies(due: Floats, dice: np.random.Generator) -> Floats:
        starts = np.cumsum(dice.exponential(every_s, int(3 * due[-1] / every_s) + 9))
        before = np.maximum(np.searchsorted(starts, due, side="right") - 1, 0)
        waits = np.where(due >= starts[0], np.maximum(0.0, starts[before] + stall_s - due), 0.0)
        return np.maximum(server(due, dice), waits)

    return latencies


@dataclass(frozen=True)
class World:
    """`arrivals_cv`: of the gaps between requests; 1 is random."""

    server: Server
    slo_s: float
    arrivals_cv: float = 1.0

    def due(self, rate_per_s: float, seconds: float, dice: np.random.Generator) -> Floats:
        if self.arrivals_cv == 1.0:
            return np.sort(dice.uniform(0, seconds, max(1, round(rate_per_s * seconds))))
        return arrivals(rate_per_s, seconds, seed=int(dice.integers(2**31)), cv=self.arrivals_cv)


WORLDS = {
    "one queue, 10 ms, cv .1; 60 ms": World(one_queue(0.1), 0.06),
    "one queue, 10 ms, cv .5; 60 ms": World(one_queue(0.5), 0.06),
    "one queue, 10 ms, cv 1; 100 ms": World(one_queue(1.0), 0.1),
    "batches of 8, 10 + 2 ms each; 60 ms": World(batches(8, 0.01, 0.002), 0.06),
    "one queue, cv .1, stalls of .2 s every 60 s; 60 ms": World(stalling(one_queue(0.1), 60, 0.2), 0.06),
    "one queue, 10 ms, cv .5; 100 ms; arrivals of cv 2": World(one_queue(0.5), 0.1, 2.0),
    "one queue, 10 ms, cv .5; 200 ms; arrivals of cv 5": World(one_queue(0.5), 0.2, 5.0),
}
PLAN = SearchPlan(quantile=0.99, confidence=0.9, first_per_s=8, most_per_s=5000)
PLANS = {"600 s, .9": PLAN, "900 s, .95": replace(PLAN, budget_s=900, confidence=0.95)}


def run_of(step: Step, world: World, dice: np.random.Generator) -> Run:
    """One run at the step's rate, from an idle server."""
    due = world.due(step.rate_per_s, step.seconds, dice)
    over = world.server(due, dice) > world.slo_s
    windows, count = due.astype(int), math.ceil(step.seconds)
    counts = np.bincount(windows, over, count).astype(int), np.bincount(windows, minlength=count)
    return Run(step, tuple(counts[0].tolist()), tuple(counts[1].tolist()))


def search(world: World, plan: SearchPlan, seed: int) -> tuple[Ended, list[Run]]:
    """How it ended, and its runs."""
    dice, runs = np.random.default_rng(seed), []
    while not isinstance(step := next_step(runs, plan), Ended):
        runs.append(_given_up(run_of(step, world, dice), plan))
    return step, runs


def judged(found: tuple[Ended, list[Run]], plan: SearchPlan, declared_per_s: float) -> Verdict:
    """The gate's verdict on a search of a release that declares so much."""
    blank = summarise([], duration_s=1.0, slo_ms=1.0)
    measured = [Measured(run, blank) for run in found[1]]
    searched = judge_capacity(found[0], measured, plan, slo_ms=1.0, hardware="simulated")
    entry = {"hardware": "simulated", "throughput": {"value": declared_per_s, "unit": "requests_per_s"}}
    policy = {"on_breach": "fail", "tolerance_frac": 0.0}
    return with_envelope(
        searched, "capacity", {"performance": [entry]}, policy, hardware="simulated", uses_gpu=False
    ).verdict


def _given_up(run: Run, plan: SearchPlan) -> Run:
    """The run as it is where it is given up as soon as a look says so."""
    for seconds in range(HOPELESS_AFTER_S, len(run.over_per_window), HOPELESS_AFTER_S):
        so_far = Run(run.step, run.over_per_window[:seconds], run.sent_per_window[:seconds])
        if is_hopeless(so_far, plan):
            return so_far
    return run


def limit_of(world: World, quantile: float) -> float:
    """The true greatest rate, by bisection with the same dice."""
    low, high = 1.0, 1000.0
    for _ in range(16):
        rate = math.sqrt(low * high)
        dice = np.random.default_rng(_TRUTH_SEED)
        due = world.due(rate, _TRUTH_S, dice)
        is_over = float((world.server(due, dice) > world.slo_s).mean()) > 1 - quantile
        low, high = (low, rate) if is_over else (rate, high)
    return low


def main() -> None:
    """Prints the two tables of docs/gates.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("--searches", type=int, default=80, help="for each cell (80)")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help=f"the first search's ({FIRST_SEED})")
    parser.add_argument("--only", default="", help="servers whose name has this")
    asked = parser.parse_args()
    print(
        "| server; p99 objective | limit | budget, confidence | too much | none | 5 % | median | 95 % | seconds, most |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    verdicts = []
    for name, world in WORLDS.items():
        if asked.only not in name:
            continue
        limit = limit_of(world, PLAN.quantile)
        for told, plan in PLANS.items():
            found = [search(world, plan, asked.first_seed + at) for at in range(asked.searches)]
            parts = np.array([(ended.claim.step.rate_per_s if ended.claim else 0.0) / limit for ended, _ in found])
            low, middle, high = np.quantile(parts, [0.05, 0.5, 0.95])
            seconds = [sum(len(one.over_per_window) for one in runs) for _, runs in found]
            cells = [[judged(one, plan, share * limit) for one in found] for share in DECLARED]
            counts = (f"{cell.count(Verdict.PASSED)} / {cell.count(Verdict.FAILED)}" for cell in cells)
            verdicts.append(f"| {name} | {told} | {' | '.join(counts)} |")
            print(
                f"| {name} | {limit:.1f}/s | {told} | {int((parts > 1).sum())} of {len(parts)} | {int((parts == 0).sum())} "
                f"| {low:.2f} | {middle:.3f} | {high:.3f} | {np.median(seconds):.0f}, {max(seconds)} |",
                flush=True,
            )
    print(
        f"\n| declares, of the limit | budget, confidence | {' | '.join(f'{one:g}' for one in DECLARED)} |\n|{'---|' * 8}"
    )
    print("\n".join(verdicts))


if __name__ == "__main__":
    main()
