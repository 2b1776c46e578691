"""How often a healthy release is rolled back, and how soon a bad one is: the e-process beside rules that people use instead.

Run `python -m benchmarks.false_rollbacks [--runs N]`. Simulated: 100 requests/s, 10 % on the canary, counters every 10 s, one
hour, looked at after every reading. `naive` rolls back when in the last 60 s the canary's error rate was over twice the
baseline's and it had at least 3 errors. `decide` is the whole product: the policy's guards, steps and bake, tick by tick.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollouts.core.carry import ERRORS, Arms
from rollouts.core.counting import Counts
from rollouts.core.evidence import Side, Tolerance, increments_of, mixed_of
from rollouts.core.policy import parse_policy
from rollouts.core.replay import walk

Counted = npt.NDArray[np.float64]
RATE_PER_S, WEIGHT, SCRAPE_S, HOUR_S = 100.0, 0.10, 10.0, 3600.0


@dataclass(frozen=True)
class Traffic:
    """Counts of (run, scrape) for both arms."""

    xc: Counted
    nc: Counted
    xb: Counted
    nb: Counted


def simulate(rng: np.random.Generator, runs: int, *, base: float, candidate: float, seconds: float = HOUR_S) -> Traffic:
    """Independent errors at a steady load."""
    shape = (runs, int(seconds / SCRAPE_S))
    nc = rng.poisson(RATE_PER_S * WEIGHT * SCRAPE_S, shape)
    nb = rng.poisson(RATE_PER_S * (1 - WEIGHT) * SCRAPE_S, shape)
    return Traffic(*(a.astype(float) for a in (rng.binomial(nc, candidate), nc, rng.binomial(nb, base), nb)))


def e_process_alarms(t: Traffic, tolerance: Tolerance, alpha: float) -> Counted:
    """Seconds until the e-process crosses 1/alpha, for each run; infinite where it never does."""
    sums = np.cumsum(increments_of(t.xc, t.nc, t.xb, t.nb, tolerance, Side.WORSE), axis=1)
    return first_time(mixed_of(sums) >= -math.log(alpha))


def naive_alarms(t: Traffic) -> Counted:
    """Seconds until the last 60 s show over twice the baseline's error rate and at least 3 errors."""
    width = int(60 / SCRAPE_S)

    def recent(counts: Counted) -> Counted:
        total = np.cumsum(counts, axis=1)
        total[:, width:] -= total[:, :-width].copy()
        return total

    xc, nc, xb, nb = (recent(counts) for counts in (t.xc, t.nc, t.xb, t.nb))
    return first_time((xc >= 3) & (xc / np.maximum(nc, 1) > 2 * xb / np.maximum(nb, 1)))


def first_time(fired: npt.NDArray[np.bool_]) -> Counted:
    return np.where(fired.any(axis=1), (fired.argmax(axis=1) + 1) * SCRAPE_S, np.inf)


def whole_rollout(rng: np.random.Generator, *, base: float, factor: float, preset: str = "fast") -> str:
    """Walks one rollout through the product's own decisions, one tick a second; how it ended, or `hold` after an hour."""

    def counted(rate_per_s: float, error_frac: float) -> Counts:
        n = int(rng.poisson(rate_per_s))
        return Counts(n, n, {ERRORS: int(rng.binomial(n, error_frac))})

    def feed(tick: int, weight_bp: int) -> Arms | None:
        share = weight_bp / 10_000
        if tick > HOUR_S:
            return None
        return Arms(counted(RATE_PER_S * share, base * factor), counted(RATE_PER_S * (1 - share), base))

    *_, last = walk(parse_policy({"preset": preset}), feed)
    return last.decision.action.value


def table(runs: int, seed: int = 2026) -> list[str]:
    """The lines to print."""
    rng = np.random.default_rng(seed)
    lines = [
        f"False rollbacks of healthy releases in one hour ({runs} runs, errors alike in both arms)",
        f"{'error rate':>12} {'e-process .01':>14} {'e-process .05':>14} {'naive':>8}",
    ]
    for base in (0.001, 0.005, 0.01):
        healthy = simulate(rng, runs, base=base, candidate=base)
        shares = [
            float(np.isfinite(alarms).mean())
            for alarms in (
                e_process_alarms(healthy, Tolerance(), 0.01),
                e_process_alarms(healthy, Tolerance(), 0.05),
                naive_alarms(healthy),
            )
        ]
        lines.append(f"{base:>12.1%} {shares[0]:>14.3f} {shares[1]:>14.3f} {shares[2]:>8.3f}")
    lines += [
        "",
        "Seconds until a bad release is rolled back (alpha .01, tolerated: 1.2 times stable + 0.1 %): median / 90 %",
        f"{'from → to':>16} {'e-process':>16}",
    ]
    for base, bad in ((0.001, 0.01), (0.001, 0.05), (0.01, 0.05), (0.01, 0.10)):
        alarms = e_process_alarms(simulate(rng, runs, base=base, candidate=bad), Tolerance(1.2, 0.001), 0.01)
        lines.append(f"{f'{base:.1%} → {bad:.1%}':>16} {np.median(alarms):>7.0f} / {np.quantile(alarms, 0.9):.0f}")
    few = max(20, runs // 20)
    ends = [whole_rollout(rng, base=0.005, factor=1.0) for _ in range(few)]
    counted = {end: ends.count(end) for end in sorted(set(ends))}
    return [*lines, "", f"Whole rollouts of healthy releases, preset fast, 0.5 % errors, {few} runs: {counted}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    print("\n".join(table(parser.parse_args().runs)))
