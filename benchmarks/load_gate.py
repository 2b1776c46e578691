"""How often the load gate is wrong, and how long it takes: its own rules on simulated traffic, at and beyond its limits.

Run `python -m benchmarks.load_gate [--runs 1000]`; a few minutes on one core. Seeded. First the objective, at confidence .95 and the
policy's defaults but for what the row says: passed and failed of all runs, in percent, and the median seconds to the end. The share
over the limit is a multiple of what is allowed: at 1 a pass and a failure are errors of the kind that confidence speaks of, at 2
and 4 a pass is one, below 1 a failure. Slow requests come independently; in clumps of so many on average; in stalls of so many
seconds; or from one queue that is busy for so much of the time, with the limit where its own latencies put it. Then the recovery
from a burst: how often the objective counts as holding again while so many requests are over, and how soon. Last, who is blamed
beside stable: both are on a machine that makes a tenth or three tenths of all requests slow, and the candidate makes so many of
its own slow besides; where it makes none, blaming it is an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.beside_stable import BLOCK_S, BLOCKS, Arm, judge_beside
from validators.core.load import Attempt
from validators.core.policy import parse_policy
from validators.core.proof import WINDOW_S, first_proof
from validators.core.recovery import recovered_after_s, surge
from validators.core.verdict import Judgement, Verdict

SEED = 5
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
#: (seconds at which requests are due, the share that is to be over, dice) → which are over.
Traffic = Callable[[Floats, float, np.random.Generator], Flags]
POLICIES = {
    "99 % at 20/s": {"rate_per_s": 20, "slo_quantile": 0.99},
    "95 % at 8/s": {"rate_per_s": 8, "slo_quantile": 0.95},
    "95 % at 20/s, `least_dispersion` 5": {"rate_per_s": 20, "slo_quantile": 0.95, "least_dispersion": 5},
}
MULTIPLES = (0.1, 0.5, 1.0, 2.0, 4.0)


def independent(due: Floats, share: float, dice: np.random.Generator) -> Flags:
    return dice.random(len(due)) < share


def clumps(mean: float) -> Traffic:
    """Runs of requests of a geometric length."""

    def over(due: Floats, share: float, dice: np.random.Generator) -> Flags:
        found = np.zeros(len(due), bool)
        for start in np.flatnonzero(dice.random(len(due)) < -np.log1p(-share) / mean):
            found[start : start + dice.geometric(1 / mean)] = True
        return found

    return over


def stalls(seconds: float) -> Traffic:
    """All requests of so many seconds, at random instants."""

    def over(due: Floats, share: float, dice: np.random.Generator) -> Flags:
        every_s = -seconds / np.log1p(-share)
        starts = np.cumsum(dice.exponential(every_s, int(3 * due[-1] / every_s) + 9)) - seconds
        return ((due[:, None] >= starts) & (due[:, None] < starts + seconds)).any(1)

    return over


def queue(busy: float) -> Traffic:
    """One server that takes times of a lognormal distribution (sigma .4), first come, first served."""
    limits: dict[tuple[float, float], float] = {}

    def latencies(due: Floats, rate_per_s: float, dice: np.random.Generator) -> Floats:
        work = dice.lognormal(-0.08, 0.4, len(due)) * busy / rate_per_s
        done = np.cumsum(work)
        free = done + np.maximum.accumulate(due - (done - work))  # Lindley's recursion, solved
        return free - due

    def over(due: Floats, share: float, dice: np.random.Generator) -> Flags:
        rate_per_s = round(len(due) / float(due[-1]))
        if (rate_per_s, share) not in limits:
            long = np.sort(np.random.default_rng(SEED).uniform(0, 400_000 / rate_per_s, 400_000))
            limits[rate_per_s, share] = float(
                np.quantile(latencies(long, rate_per_s, np.random.default_rng(SEED)), 1 - share)
            )
        return latencies(due, rate_per_s, dice) > limits[rate_per_s, share]

    return over


TRAFFIC: dict[str, Traffic] = {
    "independent": independent,
    "clumps of 3": clumps(3),
    "clumps of 10": clumps(10),
    "stalls of .5 s": stalls(0.5),
    "stalls of 2 s": stalls(2),
    "a queue, busy 30 %": queue(0.3),
    "a queue, busy 60 %": queue(0.6),
}

#: How a slow machine makes requests slow, whoever is asked.
MACHINES: dict[str, Traffic] = {
    "independent": independent,
    "stalls of .5 s": stalls(0.5),
    "stalls of 2 s": stalls(2),
    "stalls of 4 s": stalls(4),
    "stalls of 8 s": stalls(8),
}


def objective(policy: dict[str, Any], traffic: Traffic, multiple: float, runs: int) -> tuple[float, float, float]:
    """(share that passed, share that failed, median seconds) of so many gates."""
    dice, lasts_s = np.random.default_rng(SEED), float(policy["max_duration_s"])
    share, count = multiple * (1 - policy["slo_quantile"]), round(policy["rate_per_s"] * lasts_s)
    verdicts, seconds = [], []
    for _ in range(runs):
        due = np.sort(dice.uniform(0, lasts_s, count))
        windows, least = due.astype(int), int(np.ceil(lasts_s))
        over = np.bincount(windows, traffic(due, share, dice), least).astype(int).tolist()
        proof = first_proof(over, np.bincount(windows, minlength=least).tolist(), policy)
        verdicts.append(proof.found.verdict)
        seconds.append(proof.windows)
    passed, failed = (verdicts.count(one) / runs for one in (Verdict.PASSED, Verdict.FAILED))
    return passed, failed, float(np.median(seconds))


def recovery(policy: dict[str, Any], share: float, runs: int) -> tuple[float, float]:
    """(share that was back in time, median seconds of traffic after the burst that it took to see it)."""
    dice, seen_s, back = np.random.default_rng(SEED), [], 0
    for seed in range(runs):
        due = surge(policy, seed=seed)
        after = due[due >= policy["burst_s"]]
        slow = dice.random(len(after)) < share
        attempts = [Attempt(at, at, at + (9.0 if is_slow else 0.0)) for at, is_slow in zip(after, slow, strict=True)]
        if (found := recovered_after_s(attempts, policy)) is not None and found <= policy["recovery_s"]:
            back += 1
            ends = (n for n in range(1, len(attempts) + 1) if recovered_after_s(attempts[:n], policy) is not None)
            seen_s.append(attempts[next(ends) - 1].due_s - policy["burst_s"])
    return back / runs, float(np.median(seen_s)) if seen_s else float("nan")


def blamed(policy: dict[str, Any], traffic: Traffic, machine: float, own: float, runs: int) -> float:
    """How often a candidate is blamed that makes the share `own` of its requests slow, on a machine that does so with `machine` of all."""
    dice, found = np.random.default_rng(SEED), Judgement(Verdict.FAILED, "It missed its objective.")
    whole_s, count = 2 * BLOCKS * BLOCK_S, round(policy["rate_per_s"] * BLOCK_S)
    blames = 0
    for _ in range(runs):
        due = np.concatenate([at * BLOCK_S + np.sort(dice.uniform(0, BLOCK_S, count)) for at in range(2 * BLOCKS)])
        is_own = (due // BLOCK_S).astype(int) % 2 == 0
        slow = traffic(due, machine, dice) | (is_own & (dice.random(len(due)) < own))
        arms = []
        for mine in (is_own, ~is_own):
            windows = (due[mine] / WINDOW_S).astype(int)
            counts = np.bincount(windows, slow[mine], int(whole_s)), np.bincount(windows, minlength=int(whole_s))
            kept = counts[1] > 0
            arms.append(Arm(tuple(counts[0][kept].astype(int).tolist()), tuple(counts[1][kept].tolist())))
        blames += judge_beside(found, "r1", *arms, policy).verdict is Verdict.FAILED
    return blames / runs


def main() -> None:
    """Prints the tables of docs/gates.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_gate", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="gates for each cell (1000)")
    runs = parser.parse_args().runs
    policies = {name: parse_policy({"load": {"slo_ms": 100, **load}}).of("load") for name, load in POLICIES.items()}
    print(f"| objective | slow requests come | {' | '.join(f'{one:g} ×' for one in MULTIPLES)} |")
    print("|---|---|" + "---|" * len(MULTIPLES))
    for name, policy in policies.items():
        for kind, traffic in TRAFFIC.items():
            cells = (objective(policy, traffic, multiple, runs) for multiple in MULTIPLES)
            told = " | ".join(f"{100 * p:.1f} / {100 * f:.1f} / {s:.0f} s" for p, f, s in cells)
            print(f"| {name} | {kind} | {told} |", flush=True)
    shares = (0.0, 0.01, 0.05, 0.15, 0.25, 0.4, 0.6, 1.0)
    print(f"\n| objective | {' | '.join(f'{share:.0%}' for share in shares)} |\n|---|{'---|' * len(shares)}")
    for name, policy in policies.items():
        found = (recovery(policy, share, max(1, runs // 5)) for share in shares)
        told = (f"{back:.1%}" + (f", {seen:.1f} s" if back else "") for back, seen in found)
        print(f"| {name} | {' | '.join(told)} |", flush=True)
    owns = (0.0, 0.05, 0.2, 0.6)
    print(
        f"\n| objective | the machine slows | {' | '.join(f'{own:.0%}' for own in owns)} |\n|---|---|{'---|' * len(owns)}"
    )
    for name, policy in list(policies.items())[:2]:
        for kind, traffic in MACHINES.items():
            for machine in (0.1, 0.3):
                told = (f"{blamed(policy, traffic, machine, own, runs):.1%}" for own in owns)
                print(f"| {name} | {machine:.0%}, {kind} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
