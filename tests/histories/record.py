"""Writes the histories beside this file: `python -m tests.histories.record`. Seeded; run it only to add or change a history.

Each line of a history is one second: attempts, errors and slow requests of the candidate, then of stable, at the weight that
the rollout then had. The first line says what the policy is and how the story must end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import walk

HERE = Path(__file__).parent
#: A history goes on for so long after its end, for rules that need a moment more than those it was recorded with.
SPARE_S = 60
OBJECTIVES = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.02}}
Rates = tuple[float, float]  # shares of errors and of slow requests


def record(
    name: str, ends: str, rates: Callable[[int, int], tuple[Rates, Rates]], *, seconds: int = 600, seed: int = 1
) -> None:
    """`rates(second, weight_bp)` gives the candidate's and stable's."""
    rng, policy = (
        np.random.default_rng(seed),
        {"preset": "fast", "bake": {"min_s": 60, "min_samples": 100, "deadline_s": 600}},
    )
    rows: list[list[int]] = []

    def arm(rate_per_s: float, errors: float, slow: float) -> list[int]:
        n = int(rng.poisson(rate_per_s))
        return [n, int(rng.binomial(n, errors)), int(rng.binomial(n, slow))]

    def feed(tick: int, weight_bp: int) -> Arms | None:
        if tick > seconds:
            return None
        share = weight_bp / 10_000
        of_candidate, of_stable = rates(tick, weight_bp)
        rows.append([*arm(60 * share, *of_candidate), *arm(60 * (1 - share), *of_stable)])
        return arms_of(rows[-1])

    *_, last = walk(parse_policy(policy, OBJECTIVES), feed)
    for tick in range(last.tick + 1, min(last.tick + SPARE_S, seconds) + 1):
        feed(tick, last.weight_bp)
    head = {"policy": policy, "objectives": OBJECTIVES, "ends": ends}
    (HERE / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in [head, *rows]) + "\n")


def arms_of(row: list[int]) -> Arms:
    def counts(n: int, errors: int, slow: int) -> Counts:
        return Counts(n, n, {"errors": errors, "slow_250ms": slow})

    return Arms(counts(*row[:3]), counts(*row[3:]))


if __name__ == "__main__":
    fine = (0.002, 0.005)
    record("healthy", "promote", lambda s, w: (fine, fine))
    record("slow_tail", "roll_back", lambda s, w: ((0.002, 0.12), fine))
    record("only_under_load", "roll_back", lambda s, w: ((0.15, 0.005) if w >= 5000 else fine, fine))
    record("late_in_the_bake", "roll_back", lambda s, w: ((0.20, 0.005) if w >= 9000 and s > 170 else fine, fine))
    record("incident_of_both", "hold", lambda s, w: ((0.3, 0.3), (0.3, 0.3)) if s > 20 else (fine, fine), seconds=240)
    record(
        "short_incident",
        "promote",
        lambda s, w: ((0.05, 0.2), (0.05, 0.2)) if 30 < s < 45 else (fine, fine),
        seconds=1500,
    )
    record("better_than_stable", "promote", lambda s, w: (fine, (0.05, 0.005)))
