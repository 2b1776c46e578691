"""One bad replica beside a bad release: how often each is told, and what holding for a replica costs where the release is bad.

Run `python -m benchmarks.odd_replica [--runs N] [--only SET] [--scenario NAME] [--first-look] [--sigmas S] [--seed N]`; 100 runs of all
take two hours on two busy cores, first looks alone far less. Each run feeds the engine's own evaluation one count for each second, as
gateways that tell counts by replica would, and, where the rollout was held for a replica, again from the same seed as if they told none:
then the candidate is taken back. One step at half of the traffic; preset `standard`. The candidate's replicas share its requests as
`loads` says. One that is set aside gets traffic for a second more, and another takes its place after a minute: well where one replica was
bad, bad where the release was.

The scenarios of `TUNED` were looked at while the rule was made; those of `HELD_OUT` were written down before any was run, and run once. In
those of `UNANSWERED` latency is judged, too, and what fails is given up unanswered, so it is slow at every threshold: `--sigmas` is what is
allowed to chance there (`BY_CHANCE_SIGMAS`; as the engine has it, unless said).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from rollouts.core import judged
from rollouts.core.counter_deltas import ERRORS, TIMED, Arms, Counts, Reading
from rollouts.core.decision import TAKES_BACK
from rollouts.core.engine_state import EngineState
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.lifecycle import RolloutState
from rollouts.core.odd_replica import ReplicaTally
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy
from rollouts.core.rules.replica_differs import CandidateTallies, EjectReplica, suspected
from rollouts.core.snapshot import Desired, Identity, Observed

LAST_S = 240
REPLACED_S = 60
NEVER_S = 50_000
Shares = tuple[float, float, float]
Fault = Callable[[float, int, np.random.Generator], float]  # seconds since it began, the replica: the share that fails


@dataclass(frozen=True)
class Scenario:
    """`fault` begins after `good_s` seconds of the step. `is_release`: it is the release that is bad, not one replica.

    `loads`: how the candidate's requests are shared. `clump`: failures come so many at once, on one replica. `usual`: the share that
    fails on either arm, all the time. `usual_slow`: likewise those that are slow, at the points of the guard; None: latency is not judged.
    """

    name: str
    is_release: bool
    fault: Fault
    loads: tuple[float, ...] = (1, 1)
    per_s: float = 40
    good_s: int = 60
    clump: int = 1
    usual: float = 0.002
    usual_slow: Shares | None = None
    slower: Shares = (0.0, 0.0, 0.0)  # what the fault adds to them, on all of the candidate's replicas


def alike(share: float) -> Fault:
    return lambda at, one, rng: share


def only_first(share: float, others: float = 0.0) -> Fault:
    return lambda at, one, rng: share if one == 0 else others


def in_turn(share: float, after_s: float) -> Fault:
    """One replica after another breaks, and stays so."""
    return lambda at, one, rng: share if at >= one * after_s else 0.0


TUNED = (
    Scenario("all alike, 5 %", True, alike(0.05)),
    Scenario("all alike, 30 %", True, alike(0.30), loads=(1, 1, 1)),
    Scenario("all alike, 10 %, loads 7:2:1", True, alike(0.10), loads=(7, 2, 1)),
    Scenario("all alike, 5 %, in clumps of 8", True, alike(0.05), clump=8),
    Scenario("the first 30 %, the others 5 %", True, only_first(0.30, 0.05), loads=(1, 1, 1)),
    Scenario("30 %, the others 20 s after the first", True, in_turn(0.30, 20)),
    Scenario("one replica of 2, 30 %", False, only_first(0.30)),
    Scenario("one replica of 3, 100 %", False, only_first(1.0), loads=(1, 1, 1)),
    Scenario("one replica of 4, 5 %", False, only_first(0.05), loads=(1, 1, 1, 1)),
)
HELD_OUT = (
    Scenario("all alike, 3 %", True, alike(0.03), loads=(1, 1, 1), per_s=200, good_s=20),
    Scenario("all alike, 15 %, from the first second", True, alike(0.15), per_s=16, good_s=0),
    Scenario("all alike, 60 %, loads 8:1:1", True, alike(0.60), loads=(8, 1, 1), per_s=30, good_s=120),
    Scenario("all alike, 8 %, loads 3:1", True, alike(0.08), loads=(3, 1), usual=0.01),
    Scenario("all alike, 10 %, in clumps of 15", True, alike(0.10), clump=15, loads=(1, 1, 1), per_s=100),
    Scenario("the first 50 %, the others 3 %", True, only_first(0.50, 0.03), per_s=60),
    Scenario("20 %, one after another by 45 s", True, in_turn(0.20, 45), loads=(1, 1, 1)),
    Scenario("40 %, one after another by 8 s", True, in_turn(0.40, 8), loads=(1, 1, 1, 1), per_s=80),
    Scenario("one replica of 2, 50 %, few requests", False, only_first(0.50), per_s=10, good_s=180),
    Scenario("one replica of 5, 20 %", False, only_first(0.20), loads=(1,) * 5, per_s=100),
    Scenario(
        "one replica of 3, 10 %, after 10 minutes, 1 % usual", False, only_first(0.10), (1, 1, 1), 60, 600, usual=0.01
    ),
    Scenario("one replica of 2, 40 %, loads 1:4", False, only_first(0.40), loads=(1, 4), per_s=60),
)

#: Slow at 50, 100 and 250 ms: of a model that is seldom so, one that often is, and one of which a third is at the lowest.
SELDOM, OFTEN, A_THIRD = (0.01, 0.005, 0.002), (0.10, 0.04, 0.005), (0.33, 0.12, 0.005)
THREE, MANY = (1, 1, 1), 200
UNANSWERED = (
    Scenario("one replica of 3, 30 %, a third slow", False, only_first(0.30), THREE, usual_slow=A_THIRD),
    Scenario("one replica of 3, all, many requests, seldom slow", False, only_first(1.0), THREE, MANY, usual_slow=SELDOM),
    Scenario("one replica of 3, all, many requests, often slow", False, only_first(1.0), THREE, MANY, usual_slow=OFTEN),
    Scenario("one replica of 3, all, many requests, a third slow", False, only_first(1.0), THREE, MANY, usual_slow=A_THIRD),
    Scenario("all alike, 10 %, often slow", True, alike(0.10), THREE, usual_slow=OFTEN),
    Scenario("all alike, 10 %, many requests, a third slow", True, alike(0.10), THREE, MANY, usual_slow=A_THIRD),
    Scenario("all alike, all, many requests, a third slow", True, alike(1.0), THREE, MANY, usual_slow=A_THIRD),
    Scenario("one of 3, all; slower everywhere, 33 → 45 %", True, only_first(1.0), THREE, MANY, 60, 1, 0.002, A_THIRD, (0.12, 0.08, 0.01)),
    Scenario("one of 3, all; slower everywhere, 10 → 30 %", True, only_first(1.0), THREE, MANY, 60, 1, 0.002, OFTEN, (0.20, 0.10, 0.02)),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Seconds from the fault to the rollback (None: not within `LAST_S`), failed attempts of the candidate until then, and the replica
    that the rollout was held for (None: none)."""

    rolled_back_s: float | None
    failed: int
    held_for: int | None


class Candidate:
    """What the candidate's replicas are asked and fail, second by second."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.seed = scenario, seed
        self.replicas, self.points = list(range(len(scenario.loads))), points_of(policy(scenario))
        self.counts = {one: [0, 0] for one in self.replicas}

    def second(self, tick: int) -> Counts:
        loads = [self.scenario.loads[one % len(self.scenario.loads)] for one in self.replicas]
        counts = [self._of(tick, one, load / sum(loads)) for one, load in zip(self.replicas, loads, strict=True)]
        bad, attempts = (sum(one[i] for one in counts) for i in range(2))
        more = self.scenario.slower if tick >= self.scenario.good_s else (0.0, 0.0, 0.0)
        rng = np.random.default_rng((self.seed, tick, 20_000))
        return Counts(attempts, attempts, {ERRORS: bad, **slow(self.scenario, self.points, attempts, bad, more, rng)})

    def _of(self, tick: int, one: int, load: float) -> tuple[int, int]:
        scenario, rng = self.scenario, np.random.default_rng((self.seed, tick, one))
        at = tick - scenario.good_s
        share = scenario.fault(at, one % len(scenario.loads), rng) if at >= 0 else 0.0
        share = 0.0 if one >= len(scenario.loads) and not scenario.is_release else share  # another in its place
        asked = int(rng.poisson(scenario.per_s / 2 * load))
        events = (
            rng.poisson(asked * share / scenario.clump) * scenario.clump
            if scenario.clump > 1
            else rng.binomial(asked, share)
        )
        bad = min(asked, int(events) + int(rng.binomial(asked, scenario.usual)))
        self.counts[one][0] += bad
        self.counts[one][1] += asked
        return bad, asked

    def leave(self, one: int) -> None:
        self.replicas.remove(one)

    def come(self, one: int) -> None:
        """In the place of the one that left; counts by server begin anew."""
        self.replicas.append(one + len(self.scenario.loads))
        self.counts = {one: [0, 0] for one in self.replicas}


def slow(
    scenario: Scenario, points: tuple[str, ...], attempts: int, bad: int, more: Shares, rng: np.random.Generator
) -> dict[str, int]:
    """How many of an arm's attempts were slow at each point, from the lowest threshold up: all that failed, and of the others the usual
    shares and `more`. One that is over a threshold is over those below it."""
    if scenario.usual_slow is None:
        return {}
    drawn, found = rng.random(attempts - bad), {TIMED: attempts}
    for point, usual, added in zip(points, scenario.usual_slow, more, strict=True):
        found[point] = bad + int((drawn < usual + added).sum())
    return found


@cache
def policy(scenario: Scenario) -> Policy:
    step = {"weight_pct": 50, "min_s": NEVER_S // 2, "min_samples": 1, "deadline_s": NEVER_S}
    guards = [{"indicator": "errors"}, *([{"indicator": "slow"}] if scenario.usual_slow is not None else [])]
    asked = {"preset": "standard", "steps": [step], "guards": guards, "deadline_s": NEVER_S}
    objectives = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.02}}
    return parse_policy(asked, objectives).facing(has_stable=True)


def points_of(asked: Policy) -> tuple[str, ...]:
    """The counters of slow attempts, from the lowest threshold up."""
    found = [point for guard in asked.guards if guard.indicator == "slow" for point in guard.points]
    return tuple(sorted(found, key=lambda one: int("".join(filter(str.isdigit, one)))))


def run(scenario: Scenario, seed: int, *, is_told: bool, ends_held: bool = False) -> Outcome:
    """`ends_held`: the run is over once the rollout is held for a replica."""
    asked, candidate, state = policy(scenario), Candidate(scenario, seed), EngineState()
    total, failed, held_for, held_at = Arms(), 0, None, 0
    for tick in range(scenario.good_s + LAST_S):
        if held_for is not None and tick == held_at + 2:
            candidate.leave(held_for)
        if held_for is not None and tick == held_at + REPLACED_S:
            candidate.come(held_for)
        rng = np.random.default_rng((seed, tick, 10_000))
        stable = int(rng.poisson(scenario.per_s / 2))
        failed_beside = int(rng.binomial(stable, scenario.usual))
        bad = {ERRORS: failed_beside, **slow(scenario, candidate.points, stable, failed_beside, (0.0, 0.0, 0.0), rng)}
        news = Arms(candidate.second(tick), Counts(stable, stable, bad))
        total, now = total + news, tick + 1.0
        failed += news.candidate.bad[ERRORS]
        is_replacing = held_for is not None and tick < held_at + REPLACED_S
        given = TickInput(
            tick, asked, Identity(1), Desired(RolloutState.SHIFTING, step_index=0, weight_bp=5000),
            Observed(
                now, is_newly_acknowledged=not tick, step_started_at=1.0, candidate_servers=len(scenario.loads), stable_servers=2,
                inputs={CandidateTallies.name: CandidateTallies(is_replacing=is_replacing)},
            ),
            state, readings={"one": Reading("one", now, total.candidate, total.stable)},
        )  # fmt: skip
        done = evaluate(given, gone_over_s=0.5)
        if is_told and suspected(done.snapshot, done.decision):
            tallies = {
                str(one): ReplicaTally(*candidate.counts[one]) for one in candidate.replicas if candidate.counts[one][1]
            }
            told = given.observed.telling(CandidateTallies(tallies, is_replacing))
            done = evaluate(replace(given, observed=told), gone_over_s=0.5)
        state = done.engine_state
        for command in done.decision.commands:
            if isinstance(command, EjectReplica):
                held_for, held_at = int(command.replica), tick
            if ends_held:
                break
        if done.decision.action in TAKES_BACK:
            return Outcome(now - scenario.good_s, failed, held_for)
    return Outcome(None, failed, held_for)


def allow(sigmas: float | None) -> None:
    """In each process: what is allowed to chance where slowness is a replica's own."""
    if sigmas is not None:
        judged.BY_CHANCE_SIGMAS = sigmas


def row(scenario: Scenario, seed: int, runs: int, pool: ProcessPoolExecutor) -> list[str]:
    seeds = range(seed, seed + runs)
    before, after = zip(*pool.map(partial(both, scenario.name), seeds, chunksize=8), strict=True)
    held = [one.held_for is not None for one in after]
    right = sum(one.held_for == 0 for one in after)
    later = [until(b) - until(a) for a, b in zip(before, after, strict=True)]
    more = [b.failed - a.failed for a, b in zip(before, after, strict=True)]
    kept = sum(one.rolled_back_s is None for one in after)
    return [
        scenario.name,
        f"{np.quantile([until(one) for one in before], 0.5):.0f} / {np.quantile([until(one) for one in before], 0.95):.0f}",
        f"{np.quantile([until(one) for one in after], 0.5):.0f} / {np.quantile([until(one) for one in after], 0.95):.0f}",
        f"{sum(held) / runs:.1%}" + ("" if scenario.is_release else f" ({right / runs:.1%})"),
        f"{sum(one > 0 for one in later) / runs:.1%}, {max(later):.0f} s",
        f"{np.mean(more):+.1f}, {max(more):+.0f}",
        f"{kept / runs:.1%}",
    ]


def first_look(scenario: Scenario, seed: int, runs: int, pool: ProcessPoolExecutor) -> list[str]:
    """Only how many are held at all, and for the bad one; in a fraction of the time."""
    seeds = range(seed, seed + runs)
    done = list(pool.map(partial(looked_at, scenario.name), seeds, chunksize=8))
    held, right = (
        sum(test(one.held_for) for one in done) for test in (lambda one: one is not None, lambda one: one == 0)
    )
    return [scenario.name, f"{held} of {runs}" + ("" if scenario.is_release else f" ({right})")]


def looked_at(name: str, seed: int) -> Outcome:
    return run(named(name), seed, is_told=True, ends_held=True)


def named(name: str) -> Scenario:
    return next(one for one in (*TUNED, *HELD_OUT, *UNANSWERED) if one.name == name)


def until(one: Outcome) -> float:
    return float(LAST_S) if one.rolled_back_s is None else one.rolled_back_s


def both(name: str, seed: int) -> tuple[Outcome, Outcome]:
    """Without and with counts by replica; until the rollout is held for one they are the same."""
    scenario = named(name)
    told = run(scenario, seed, is_told=True)
    return (told if told.held_for is None else run(scenario, seed, is_told=False)), told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="of each scenario (%(default)s)")
    parser.add_argument("--only", choices=["tuned", "held-out", "unanswered"], default="")
    parser.add_argument("--scenario", default="", help="those with this in their name")
    parser.add_argument("--first-look", action="store_true", help="only how many runs are held at all")
    parser.add_argument("--sigmas", type=float, help="what is allowed to chance where slowness is a replica's own")
    parser.add_argument("--seed", type=int, default=0, help="added to those of the published runs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    sets = {"tuned": (TUNED, 1_000_000), "held-out": (HELD_OUT, 2_000_000), "unanswered": (UNANSWERED, 3_000_000)}
    columns: tuple[str, ...] = (
        "fault → rollback, s, without: p50 / p95",
        "with",
        "held (for the bad one)",
        "later: runs, most",
        "more failed: mean, most",
        "goes on",
    )
    columns, told = (("held (for the bad one)",), first_look) if asked.first_look else (columns, row)
    with ProcessPoolExecutor(asked.workers, initializer=allow, initargs=(asked.sigmas,)) as pool:
        for name, (scenarios, seed) in sets.items():
            if asked.only not in ("", name):
                continue
            print(
                f"\n{name}, {asked.runs} runs each\n\n| fault | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}",
                flush=True,
            )
            for one in (each for each in scenarios if asked.scenario in each.name):
                print(f"| {' | '.join(told(one, seed + asked.seed, asked.runs, pool))} |", flush=True)


if __name__ == "__main__":
    main()
