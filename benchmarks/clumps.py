"""How often clumped errors roll a healthy release back, what that protection costs, and how late faults are found.

Run `python -m benchmarks.clumps [--runs N]` (2,000 runs: about half an hour). Counters are read every second. A canary has 1,
10 or 100 requests/s and stable 19 times as many; both have 0.5 % errors, which come alone or in clumps that fall within one
server's second; 1 % where they last for some seconds on one server. A whole rollout is three steps of ten minutes at 5, 25 and 50 % and
a bake of thirty at 95 %, judged by the bars of the preset `standard`; stable was watched for 30 s before.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.arrays import increments_of, mixed_of
from benchmarks.calibration.vectorised import Dispersions, fixed_sums_of, onset_mixed_of, onset_step_of, worse_of
from rollouts.core.evidence import Side, Tolerance
from rollouts.core.policy_schema import parse_policy

Counted = npt.NDArray[np.float64]
BASE, WARM_S = 0.005, 30
WHOLE = [(WARM_S, 0.0), (600, 0.05), (600, 0.25), (600, 0.5), (1800, 0.95)]
GUARD = parse_policy({"preset": "standard"}).guards[0]
BAR = parse_policy({"preset": "standard"}).bar_worse_of(GUARD)
SINGLE = -math.log(0.01)  # one test at alpha 1 %, as rollouts are compared elsewhere


@dataclass
class Clumps:
    """Bad attempts of one arm, second by second. `size` 1: they come alone; `is_fixed`: every clump is that large, else geometric."""

    rng: np.random.Generator
    runs: int
    size: float = 1.0
    is_fixed: bool = False

    def bad(self, mean: float) -> Counted:
        events = self.rng.poisson(mean / self.size, self.runs)
        if self.is_fixed or self.size == 1:
            return events * self.size
        some = events > 0
        out = np.zeros(self.runs)
        out[some] = events[some] + self.rng.negative_binomial(events[some], 1 / self.size)
        return out

    def second(self, rate: float, share: float) -> tuple[Counted, Counted]:
        """Bad and all attempts."""
        bad = self.bad(rate * share)
        return bad, bad + self.rng.poisson(rate * (1 - share), self.runs)


@dataclass
class Bursts:
    """Servers of 10 requests/s each, of which one now and then fails 30 % for `mean_s` seconds: slowness under load looks like this."""

    rng: np.random.Generator
    runs: int
    mean_s: float
    share: float = 0.3

    def __post_init__(self) -> None:
        self._on: Counted | None = None

    def second(self, rate: float, share: float) -> tuple[Counted, Counted]:
        servers = max(1, round(rate / 10))
        often = share / self.share
        if self._on is None or self._servers != servers:
            self._servers, self._on = servers, self.rng.binomial(servers, often, self.runs).astype(float)
        stay, begin = 1 - 1 / self.mean_s, often / (1 - often) / self.mean_s
        on = self._on.astype(int)
        self._on = (self.rng.binomial(on, stay) + self.rng.binomial(servers - on, begin)).astype(float)
        mean = rate / servers * self.share * self._on
        bad = self.rng.poisson(mean).astype(float)
        return bad, bad + self.rng.poisson(np.maximum(0.0, rate - mean))


@dataclass
class Queues:
    """Servers of 10 requests/s each with one queue and lognormal service times; bad is slower than the slowest 1 % of all.

    A second is ten arrivals at every server. `busy`: the share of time that a server works.
    """

    rng: np.random.Generator
    runs: int
    busy: float

    def __post_init__(self) -> None:
        self._left: Counted | None = None
        pilot = [self._waits(40) for _ in range(600)]
        self._slow_s = float(np.quantile(np.concatenate([one.ravel() for one in pilot[100:]]), 0.99))
        self._left = None

    def _waits(self, servers: int) -> Counted:
        """How long each of ten requests at each server took, in seconds."""
        left = np.zeros((self.runs, servers)) if self._left is None else self._left
        took = []
        for _ in range(10):
            left = np.maximum(0.0, left - self.rng.exponential(0.1, left.shape))
            left = left + self.rng.lognormal(math.log(self.busy / 10) - 0.5, 1.0, left.shape)
            took.append(left)
        self._left = left
        return np.stack(took)

    def second(self, rate: float, share: float) -> tuple[Counted, Counted]:
        servers = max(1, round(rate / 10))
        bad = (self._waits(servers) > self._slow_s).sum(axis=(0, 2)).astype(float)
        return bad, np.full(self.runs, 10.0 * servers)


Arm = Callable[[float, float], tuple[Counted, Counted]]


class Judge:
    """One guard of many runs, as absorb() and judge() treat it, beside the plain e-process; all runs change their weight together."""

    def __init__(self, runs: int, tolerance: Tolerance = GUARD.roll_back_over) -> None:
        self.runs, self.tolerance = runs, tolerance
        self.scatter = Dispersions(runs, 5.0)
        self.phis = (np.ones(runs), np.ones(runs))
        self.begin()

    def begin(self) -> None:
        self.ticks, self.log_m, self.plain = 0, np.zeros((self.runs, 8)), np.zeros((self.runs, 8))
        self.xc, self.nc, self.xb, self.nb = (np.zeros(self.runs) for _ in range(4))

    def absorb(self, at: float, xc: Counted, nc: Counted, xb: Counted, nb: Counted) -> None:
        before = self.phis
        self.scatter.absorb(at, bad_candidate=xc, candidate=nc, bad_stable=xb, stable=nb)
        self.phis = self.scatter.phis
        if not nc.any():
            return
        self.ticks += 1
        more = increments_of(xc, nc, xb, nb, self.tolerance, Side.WORSE)
        self.plain += more
        self.log_m = onset_step_of(
            self.log_m, worse_of((xc, nc, xb, nb), self.tolerance, before, self.phis), self.ticks
        )
        self.xc, self.nc, self.xb, self.nb = self.xc + xc, self.nc + nc, self.xb + xb, self.nb + nb

    @property
    def phi(self) -> Counted:
        """Over both arms."""
        return self.phis[0]

    @property
    def log_e_worse(self) -> Counted:
        return onset_mixed_of(self.log_m, self.ticks)

    @property
    def log_e_plain(self) -> Counted:
        return mixed_of(self.plain)

    def is_over(self, phi: Counted | float) -> npt.NDArray[np.bool_]:
        """Over the objective, and stable is not."""
        limit = self.tolerance.of(GUARD.max_frac)
        sums = fixed_sums_of(self.xc, self.nc, limit, Side.WORSE) / np.reshape(phi, (-1, 1))
        return np.asarray((mixed_of(sums) >= BAR) & (self.nb >= 20) & (self.xb <= limit * self.nb))


def false_rollbacks(
    candidate: Arm, stable: Arm, rate: float, runs: int, *, base: float, stages: list[tuple[int, float]]
) -> tuple[float, float]:
    """The share of healthy releases that are rolled back, by the product and by the same test without tempering.

    `stages` are (seconds, weight); `rate` is the canary's at 5 %.
    """
    judge, total, at = Judge(runs), rate * 20, 0.0
    back, naively = np.zeros(runs, dtype=bool), np.zeros(runs, dtype=bool)
    for stage_s, weight in stages:
        judge.begin()
        for _ in range(stage_s):
            at += 1
            xc, nc = candidate(total * weight, base) if weight else (np.zeros(runs), np.zeros(runs))
            judge.absorb(at, xc, nc, *stable(total * (1 - weight), base))
            if weight:
                back |= (judge.log_e_worse >= BAR) | judge.is_over(judge.phi)
                naively |= (judge.log_e_plain >= BAR) | judge.is_over(1.0)
    return float(back.mean()), float(naively.mean())


@dataclass
class Delays:
    """Seconds from the fault until each rule found it, by run; infinite where it did not, or where it had been there before."""

    product: Counted
    plain: Counted


def delays(
    runs: int, rng: np.random.Generator, *, rate: float, ratio: float, base: float, fault: float, onset_s: int, last_s: int,
    bar: float, tolerance: Tolerance,
) -> Delays:  # fmt: skip
    """Independent errors at one weight: `base` in both arms, `fault` in the candidate after `onset_s`."""
    arm = Clumps(rng, runs)
    judge = Judge(runs, tolerance)
    found = Delays(np.full(runs, np.inf), np.full(runs, np.inf))
    none = np.zeros(runs)
    for t in range(1 - WARM_S, onset_s + last_s + 1):
        xb, nb = arm.second(rate * ratio, base)
        xc, nc = arm.second(rate, fault if t > onset_s else base) if t > 0 else (none, none)
        judge.absorb(float(t + WARM_S), xc, nc, xb, nb)
        if t > 0:
            for by_rule, log_e in ((found.product, judge.log_e_worse), (found.plain, judge.log_e_plain)):
                by_rule[(log_e >= bar) & np.isinf(by_rule)] = t - onset_s
    return found


def _told(by_run: Counted) -> str:
    return f"{np.quantile(by_run, 0.5, method='lower'):.0f} / {np.quantile(by_run, 0.9, method='lower'):.0f}"


def clump_table(runs: int, seed: int = 1) -> list[str]:
    """False rollbacks of whole rollouts."""
    lines = [f"False rollbacks of healthy releases, {runs} whole rollouts (bar {BAR:.2f}): tempered | not tempered"]
    kinds: dict[str, Callable[[np.random.Generator], Arm]] = {
        "alone": lambda rng: Clumps(rng, runs).second,
        "clumps of 8": lambda rng: Clumps(rng, runs, 8.0, is_fixed=True).second,
        "geometric, mean 5": lambda rng: Clumps(rng, runs, 5.0).second,
        "geometric, mean 2": lambda rng: Clumps(rng, runs, 2.0).second,
    }
    for name, kind in kinds.items():
        cells = []
        for rate in (1.0, 10.0, 100.0):
            rng = np.random.default_rng(seed)
            found = false_rollbacks(kind(rng), kind(rng), rate, runs, base=BASE, stages=WHOLE)
            cells.append(f"{rate:>5.0f}/s {found[0]:.4f} | {found[1]:.4f}")
        lines.append(f"{name:>20} {'   '.join(cells)}")
    return lines


def slow_table(runs: int, seed: int = 3) -> list[str]:
    """Bad attempts that stick together for seconds: only what is known of stable tells them from a fault."""
    lines = [
        "",
        "What lasts for seconds, 20 minutes at 10 requests/s beside 190, by how long stable was watched: tempered | not",
    ]
    kinds: dict[str, Callable[[np.random.Generator], Arm]] = {
        "bursts of 3 s": lambda rng: Bursts(rng, runs, 3.0).second,
        "bursts of 10 s": lambda rng: Bursts(rng, runs, 10.0).second,
        "queues, 40 % busy": lambda rng: Queues(rng, runs, 0.4).second,
        "queues, 62 % busy": lambda rng: Queues(rng, runs, 0.62).second,
    }
    for name, kind in kinds.items():
        cells = []
        for known_s in (30, 120, 600):
            rng = np.random.default_rng(seed)
            stages = [(known_s, 0.0), (1200, 0.05)]
            found = false_rollbacks(kind(rng), kind(rng), 10.0, runs, base=2 * BASE, stages=stages)
            cells.append(f"{known_s:>4} s {found[0]:.4f} | {found[1]:.4f}")
        lines.append(f"{name:>20} {'   '.join(cells)}")
    return lines


def delay_table(runs: int, seed: int = 2) -> list[str]:
    """Time to detection with independent errors, from the first second and late."""
    cases = (("alpha .01, no tolerance", SINGLE, Tolerance()), ("standard", BAR, GUARD.roll_back_over))
    lines = ["", "Seconds to detection, 0.5 % on stable, independent errors: product median / 90 % (plain e-process)"]
    for name, bar, tolerance in cases:
        for rate in (1.0, 10.0, 100.0):
            cells = []
            for fault, last_s in ((0.02, 3000), (0.05, 700), (0.2, 120)):
                found = delays(
                    runs, np.random.default_rng(seed), rate=rate, ratio=19, base=BASE, fault=fault, onset_s=0,
                    last_s=max(20, int(last_s / rate**0.8)), bar=bar, tolerance=tolerance,
                )  # fmt: skip
                cells.append(f"{fault:.0%}: {_told(found.product)} ({_told(found.plain)})")
            lines.append(f"{name:>24} {rate:>4.0f}/s  {'   '.join(cells)}")
    lines += [
        "",
        "A fault of 0.1 % → 1 % at 10 requests/s beside 90: product median / 90 % (plain e-process), alpha .01",
    ]
    for onset_s in (0, 1800, 7200):
        found = delays(
            runs, np.random.default_rng(seed), rate=10.0, ratio=9, base=0.001, fault=0.01, onset_s=onset_s, last_s=900,
            bar=SINGLE, tolerance=Tolerance(1.2, 0.001),
        )  # fmt: skip
        lines.append(f"{'begins after':>24} {onset_s:>5} s  {_told(found.product)} ({_told(found.plain)})")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    given = parser.parse_args().runs
    few = max(200, given // 4)
    for table in (clump_table(given), slow_table(few), delay_table(few)):
        print("\n".join(table), flush=True)
