"""One digest for each simulated rollout of what every tick decided: `python -m benchmarks.decision_digests [--runs N] [--only PART]`.

Run it before and after a change of the rollout's rules that must change no decision, and compare both outputs. It walks the recorded
histories and one rollout of each row of `benchmarks.calibration` (ordinary and premises). The engine's state goes through its stored
form once a minute. Each walked rollout is then replayed from its recorded ticks, and a sample of its states is judged in situations
that no simulation meets: paused, promoting, by hand, without servers, beside a silent gateway.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.calibration.ordinary.__main__ import rows
from benchmarks.calibration.premises import walking
from benchmarks.calibration.premises.scenario import Scenario
from benchmarks.calibration.premises.scenarios import scenarios
from rollouts.core.decision import Decision
from rollouts.core.engine_state import EngineState
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.lifecycle import RolloutState
from rollouts.core.odd_replica import ReplicaTally
from rollouts.core.policy import Policy
from rollouts.core.replay import replay
from rollouts.core.rules.replica_differs import CandidateTallies
from rollouts.core.rules.stable_replica import StableTallies
from rollouts.core.snapshot import Desired, Identity, Observed, People
from rollouts.core.tick import Tick
from rollouts.core.tick_history import OpenSegment, rows_of
from tests.histories.test_histories import HISTORIES, replayed

S = RolloutState
LIVE = (S.PREPARING, S.SHADOWING, S.SHIFTING, S.BAKING, S.PAUSED, S.SECOND_LOOK)
ENDED = {S.PROMOTED, S.ROLLED_BACK, S.PAUSED}
#: Every so many ticks the state goes through its stored form, and is judged in other situations.
STORED_EVERY, JUDGED_EVERY = 60, 97


def digest(decisions: Iterator[Decision]) -> str:
    whole = hashlib.sha256()
    for one in decisions:
        told = [str(one.action), str(one.code), one.reason, one.facts]
        whole.update(json.dumps(told, sort_keys=True, default=str).encode())
    return whole.hexdigest()[:16]


class Recorded:
    """Stands in for `evaluate`, keeps each tick, and stores its state now and then."""

    def __init__(self) -> None:
        self.ticks: list[tuple[TickInput, Tick]] = []

    def __call__(self, given: TickInput, *, gone_over_s: float) -> Tick:
        if given.number % STORED_EVERY == 0:
            given = replace(given, engine_state=stored(given.engine_state))
        tick = evaluate(given, gone_over_s=gone_over_s)
        self.ticks.append((given, tick))
        return tick


def stored(state: EngineState) -> EngineState:
    return EngineState.from_json(json.loads(json.dumps(state.to_json())))


def walked(scenario: Scenario, seed: int) -> tuple[Policy, list[tuple[TickInput, Tick]]]:
    recorded = walking.evaluate = Recorded()  # type: ignore[assignment]
    rng = np.random.default_rng([seed, zlib.crc32(f"{scenario.kind}{scenario.name}".encode())])
    run = walking.Run(scenario, rng)
    run.warm_up()
    run.engine.start(float(scenario.warm_s))
    run._write_weight(0)
    for at in range(1, scenario.horizon_s + 1):
        run._judged(at, is_followed=run._traffic(at))
        if run.engine.state in ENDED:
            break
    return run.engine.policy, recorded.ticks


def again(policy: Policy, ticks: list[tuple[TickInput, Tick]]) -> Iterator[Decision]:
    """The decisions of a replay of these ticks' records."""
    segment = OpenSegment()
    for tick in {given.number: tick for given, tick in ticks}.values():
        segment = segment.after(tick.record)
    whole = OpenSegment.from_json(json.loads(json.dumps(segment.to_json())))
    for walk in replay(rows_of(whole.first_tick, whole.from_at, whole.ticks), policy):
        yield walk.decision


def elsewhere(ticks: list[tuple[TickInput, Tick]], seed: int) -> Iterator[Decision]:
    """Decisions on these ticks' states in random situations; each state comes from its stored form."""
    rng = random.Random(seed)
    for given, tick in ticks[JUDGED_EVERY // 3 :: JUDGED_EVERY]:
        for _ in range(12):
            given = replace(given, engine_state=stored(given.engine_state))
            yield evaluate(situation(given, rng), gone_over_s=rng.choice((-1.0, 0.5))).decision
        yield tick.decision


def situation(given: TickInput, rng: random.Random) -> TickInput:
    def often(likely: Any, *others: Any) -> Any:
        return likely if rng.random() < 0.8 else rng.choice(others)

    seen, policy = given.observed, given.policy
    state = rng.choice(LIVE)
    desired = Desired(
        state, rng.choice(LIVE[1:]), rng.randrange(len(policy.steps)), given.desired.weight_bp, rng.choice((1, 2)),
        rng.choice((S.SHIFTING, S.SHADOWING)), "Traffic taken away.", rng.random() < 0.15, rng.random() < 0.2,
    )  # fmt: skip
    tallies = {"a:1": ReplicaTally(rng.choice((0, 40)), 60), "b:1": ReplicaTally(rng.choice((0, 30)), 300, 1)}
    observed = Observed(
        seen.now + rng.choice((0, 1, 100, 5000)), often(True, False), rng.random() < 0.2, often(True, False),
        often("", "nack"), often(seen.step_started_at, None), often(seen.total_s, 1e7), often(2, 0, None), often(2, 0, None),
        often(None, 0, 2), 60.0, rng.random() < 0.1, rng.choice((0, 1)), often(seen.server_since, seen.now - 5), often("", "Other files."),
        often("", "other hardware"), often("", "provider_down"), "The counters cannot be read.", often({}, {"wrong": "no prober"}),
        rng.choice((5.0, 5000.0)), often("", "No room."), often("", "It failed to load."),
    )  # fmt: skip
    observed = observed.telling(
        CandidateTallies(often({}, tallies), rng.random() < 0.2), StableTallies(often({}, tallies), rng.random() < 0.2)
    )
    has_stable = often(True, False)
    identity = Identity(7, has_stable, "r2", "r1", "" if has_stable else rng.choice(("", "r0")))
    approvals = dict.fromkeys(("start", "promote", "bake"), 9) if rng.random() < 0.5 else {}
    people = People(approvals, rng.random() < 0.15, often("", "No report."))
    return replace(
        given, number=given.number + 1, policy=policy.facing(has_stable=has_stable), identity=identity, desired=desired,
        observed=observed, people=people,
    )  # fmt: skip


def told(name: str, scenario: Scenario, seed: int, seconds: int) -> str:
    scenario = replace(scenario, horizon_s=min(seconds, scenario.horizon_s))
    policy, ticks = walked(scenario, seed)
    parts = digest(tick.decision for _, tick in ticks), digest(again(policy, ticks)), digest(elsewhere(ticks, seed))
    return f"{' '.join(parts)} {len(ticks):6} {ticks[-1][1].decision.code:20} {name}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decision_digests", description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", default="", metavar="PART")
    parser.add_argument("--most", type=int, default=None, help="the first so many rows")
    parser.add_argument("--seconds", type=int, default=900, help="the most that is walked of a rollout")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    for path in HISTORIES:
        print(digest(walk.decision for walk in replayed(path)[1]), path.stem)
    known = [(row.name, row.scenario) for row in rows()]
    known += [(f"{one.group}: {one.kind} {one.rate_per_s}", one) for one in scenarios()]
    wanted = [(name, one) for name, one in known if args.only in name][: args.most]
    jobs = [(name, one, seed, args.seconds) for name, one in wanted for seed in range(args.runs)]
    with ProcessPoolExecutor(args.processes) as pool:
        for line in pool.map(told, *zip(*jobs, strict=True), chunksize=1):
            print(line, flush=True)


if __name__ == "__main__":
    main()
