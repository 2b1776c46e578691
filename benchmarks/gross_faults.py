"""How soon a sudden gross fault is decided, and how long a bad moment of the candidate may last: with the rule `mostly_failing` and the
looks that go with it, and without.

Run `python -m benchmarks.gross_faults [--runs 100] [--seed N]`; about ten minutes. Pure: the engine's own functions over simulated
traffic, half of which goes to the candidate; counters are read each second, and sooner while the candidate fails, as the engine does it. A
request ends 10 ms after it came; 0.5 % of either arm fail. A decision comes 40 ms after its reading. Nothing is told of second attempts.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from rollouts.core.counter_deltas import ERRORS, Counts, Reading
from rollouts.core.decision import TAKES_BACK, Code
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy_schema import parse_policy
from rollouts.core.rules.all_failing import AllFailing
from rollouts.core.rules.mostly_failing import MostlyFailing
from rollouts.core.rules.table import findings, most_severe
from rollouts.core.snapshot import Desired, Identity, Observed
from rollouts.core.stage_evidence import take_snapshot
from rollouts.engine.timings import EngineTimings

SEED = 20_261_126
STEPS = [{"weight_pct": 50, "min_s": 3000, "min_samples": 30, "deadline_s": 4000}]
POLICY = parse_policy({"preset": "fast", "steps": STEPS, "guards": [{"indicator": "errors"}]}).facing(has_stable=True)
BASE_FRAC, TAKES_S, READ_S, DECIDED_S = 0.005, 0.01, 0.02, 0.04
GOOD_S, WATCHED_S, BETWEEN_S = 12.0, 20.0, 60.0
#: The pace of looks at a candidate that fails before this rule came.
LOOKS_BEFORE_S = 0.5


@dataclass(frozen=True)
class Trouble:
    """From so many seconds on, for so many seconds, this share of the attempts fails, and ends together if it is a clump."""

    words: str
    lasts_s: float
    share: float
    is_of_both: bool = False
    is_clump: bool = False


FAULTS = [0.45, 0.6, 0.75, 1.0]
MOMENTS = [
    Trouble("nothing", 0, 0),
    Trouble("all fail for 0.3 s", 0.3, 1.0),
    Trouble("all fail for 0.6 s", 0.6, 1.0),
    Trouble("60 % fail for 0.6 s", 0.6, 0.6),
    Trouble("60 % fail for 1 s", 1.0, 0.6),
    Trouble("30 % fail for 2 s", 2.0, 0.3),
    Trouble("what came within 0.2 s fails at one instant, half of it", 0.2, 0.5, is_clump=True),
    Trouble("what came within 0.5 s fails at one instant, all of it", 0.5, 1.0, is_clump=True),
    Trouble("60 % of both arms fail for 3 s", 3.0, 0.6, is_of_both=True),
    Trouble("70 % of both arms fail for 20 s", 20.0, 0.7, is_of_both=True),
]


class Traffic:
    """Cumulative counts of both arms by the time of reading, of requests that come at random."""

    def __init__(
        self, rng: np.random.Generator, rate_per_s: float, until_s: float, troubles: list[tuple[float, Trouble]]
    ) -> None:
        n = rng.poisson(rate_per_s * (until_s + 1))
        came = np.sort(rng.random(n) * (until_s + 1) - 1)
        candidate, bad, ends = rng.random(n) < 0.5, rng.random(n) < BASE_FRAC, came + TAKES_S
        for at, one in troubles:
            struck = (came >= at) & (came < at + one.lasts_s) & (candidate | one.is_of_both)
            bad |= struck & (rng.random(n) < one.share)
            if one.is_clump:
                ends[struck & bad] = at + one.lasts_s + TAKES_S
        self._ends = [
            np.sort(ends[arm & which]) for arm in (candidate, ~candidate) for which in (np.ones(n, bool), bad)
        ]

    def read(self, at: float) -> Reading:
        candidate, its_bad, stable, bad = (int(np.searchsorted(one, at, side="right")) for one in self._ends)
        return Reading(
            "one", at, Counts(candidate, candidate, {ERRORS: its_bad}), Counts(stable, stable, {ERRORS: bad})
        )


def looks(state: EngineState | None, at: float, due: float, again_s: float) -> float:
    """When the engine looks next: at the next tick, or sooner while the candidate fails, as `RolloutEntry.is_suspect` tells."""
    last = state.last.candidate if state else Counts()
    bad = last.bad.get(ERRORS, 0)
    is_suspect = state is not None and (state.of(AllFailing).attempts > 0 or (bad >= 2 and bad * 10 >= last.attempts))
    return min(due, at + again_s) if is_suspect else due


def decided(traffic: Traffic, until_s: float, again_s: float) -> tuple[float, Code] | None:
    """When the candidate is taken back, in seconds from the beginning, and why; None: it is not."""
    state, at, due, tick = EngineState(stage="step", commanded_at=-1.0), 0.0, 0.0, 0
    while at < until_s:
        tick += 1
        read = {"gateway": traffic.read(at + READ_S)}
        state = update_state(state, tick=tick, readings=read, policy=POLICY, has_stable=True)
        wanted = Desired(RolloutState.SHIFTING, step_index=0, weight_bp=5000)
        found = most_severe(findings(take_snapshot(POLICY, Identity(), wanted, Observed(at), state)))
        if found is not None and found.action in TAKES_BACK:
            return at + DECIDED_S, found.code
        due += at >= due
        at = looks(state, at, due, again_s)
    return None


def both_ways() -> Iterator[tuple[str, AbstractContextManager[object], float]]:
    """Without the rule and its looks, and with them."""
    yield "without", patch.object(MostlyFailing, "is_proven", return_value=False), LOOKS_BEFORE_S
    yield "with", nullcontext(), EngineTimings().look_again_s


def faults(runs: int, seed: int) -> Iterator[str]:
    yield "| requests/s | the candidate fails, after 12 good seconds | s to decide, without: p50 / p95 | with: p50 / p95 | by |"
    yield "|---|---|---|---|---|"
    for rate in (40, 240, 1000):
        for share in FAULTS:
            cells, codes = [], Counter[str]()
            for _, without, again_s in both_ways():
                rng, took = np.random.default_rng([seed, rate, round(100 * share)]), list[float]()
                codes.clear()
                with without:
                    for _ in range(runs):
                        began = GOOD_S + rng.random()
                        trouble = Trouble("", WATCHED_S, share)
                        found = decided(
                            Traffic(rng, rate, began + WATCHED_S, [(began, trouble)]), began + WATCHED_S, again_s
                        )
                        took.append(found[0] - began if found else np.inf)
                        codes[found[1] if found else "missed"] += 1
                cells.append(f"{np.median(took):.2f} / {np.quantile(took, 0.95):.2f}")
            said = ", ".join(f"`{code}` {count}" for code, count in codes.most_common())
            yield f"| {rate} | {share:.0%} | {' | '.join(cells)} | {said} |"


def moments(runs: int, seed: int) -> Iterator[str]:
    yield f"| five minutes, and on average every {BETWEEN_S:.0f} s | requests/s | taken back, without | with | by |"
    yield "|---|---|---|---|---|"
    for number, one in enumerate(MOMENTS):
        for rate in (40, 240, 1000):
            cells, codes = [], Counter[str]()
            for _, without, again_s in both_ways():
                rng = np.random.default_rng([seed, rate, 1000 + number])
                codes.clear()
                with without:
                    for _ in range(runs):
                        at = 10 + np.cumsum(rng.exponential(BETWEEN_S, 20))
                        found = decided(Traffic(rng, rate, 300, [(float(when), one) for when in at]), 300, again_s)
                        codes[found[1] if found else ""] += 1
                cells.append(f"{runs - codes.pop('', 0)} of {runs}")
            said = ", ".join(f"`{code}` {count}" for code, count in codes.most_common()) or "–"
            yield f"| {one.words} | {rate} | {' | '.join(cells)} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=SEED)
    asked = parser.parse_args()
    for table in (faults, moments):
        for line in table(asked.runs, asked.seed):
            print(line, flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
