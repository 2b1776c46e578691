"""A rollout between two real servers: the split is in the client, the decisions are those of the product's core."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.gpu_proof.made import ITEM
from benchmarks.gpu_proof.outcome import Outcome, Verdict, unknown
from benchmarks.gpu_proof.scene import Scene, Served
from benchmarks.gpu_proof.steps.load import capacity_of
from rollouts.core.counter_deltas import ERRORS, Arms, Counts
from rollouts.core.decision import TAKES_BACK
from rollouts.core.policy import FULL_BP, point_name
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, walk
from serving.traffic.core.buckets import EDGES_US
from validators.core.load import Attempt, arrivals
from validators.execution.runners import load as load_runner

_ARM = 31337.0
_TICK_S, _SEED = 1.0, 1000
_FAULT_AT, _LAST_TICK = 4, 40  # ticks since the first step
_MOST_PER_S = 40.0
_SLACK, _LEAST_THRESHOLD_MS = 30, 250


def rollout_errors(scene: Scene) -> Outcome:
    return _rolled_back(scene, "errors")


def rollout_slow(scene: Scene) -> Outcome:
    return _rolled_back(scene, "slow")


@dataclass
class _Split:
    """Sends each second's requests to both servers by weight, and counts as the product's gateway does."""

    stable: Served
    candidate: Served
    rate: float
    threshold_ms: float
    seen: list[dict[str, Any]] = field(default_factory=list)
    fault_s: float = 0.0
    fault_sent_at: float | None = None
    rolled_back_at: float | None = None

    def __post_init__(self) -> None:
        objectives = {"errors_max_frac": 0.01, "slow": {"threshold_ms": self.threshold_ms, "max_frac": 0.05}}
        self.policy = parse_policy({"preset": "demo"}, objectives)
        self.edges_us = sorted({edge for guard in self.policy.guards for edge in guard.thresholds_us})
        self.requests = {one.model: one.requests() for one in (self.stable, self.candidate)}

    def second(self, tick: int, weight_bp: int) -> Arms:
        """One second of traffic. Requests of a tick end before the next begins: a late answer counts in its own tick."""
        rng, due = np.random.default_rng(_SEED + tick), arrivals(self.rate, _TICK_S, seed=_SEED + tick)
        goes = rng.random(len(due)) < weight_bp / FULL_BP
        began = time.perf_counter()
        found = self._both({self.candidate.model: due[goes], self.stable.model: due[~goes]})
        arms = Arms(*(self._counts(found[one.model]) for one in (self.candidate, self.stable)))
        self.seen.append(
            {"tick": tick, "weight_bp": weight_bp, **arms.to_json(), "took_s": round(time.perf_counter() - began, 3)}
        )
        return arms

    def _both(self, schedules: dict[str, Any]) -> dict[str, list[Attempt]]:
        def drive(model: str) -> list[Attempt]:
            schedule = schedules[model]
            if not len(schedule):
                return []
            return load_runner.drive(self.requests[model], schedule, timeout_s=10, progress=lambda sent: None)

        with ThreadPoolExecutor(len(schedules)) as pool:
            return dict(zip(schedules, pool.map(drive, schedules), strict=True))

    def _counts(self, attempts: list[Attempt]) -> Counts:
        took_us = [(one.done_s - one.sent_s) * 1e6 for one in attempts]
        bad = {point_name("slow", edge): sum(took > edge for took in took_us) for edge in self.edges_us}
        return Counts(len(attempts), len(attempts), {**bad, ERRORS: sum(bool(one.error) for one in attempts)})

    def arm(self) -> None:
        """The candidate misbehaves from the next request on."""
        x = np.zeros((1, ITEM), np.float32)
        x[0, :2] = _ARM, self.fault_s
        self.candidate.infer({"x": x})
        self.fault_sent_at = time.monotonic()

    def answered(self, served: Served) -> int:
        """How many inferences the server itself counted, failed ones too."""
        (model,) = served.client.statistics(served.model)["model_stats"]
        counted = model.get("inference_stats", {})
        return sum(int(counted.get(name, {}).get("count", 0)) for name in ("success", "fail"))


def _rolled_back(scene: Scene, fault: str) -> Outcome:
    """An honest candidate is kept; from the moment it misbehaves, the core must roll back, and then stable alone is asked."""
    scene.clear()
    manifests = (scene.make.dense("stable"), scene.make.dense("candidate", fault=fault))
    with scene.all_served(*manifests) as (stable, candidate):
        capacity = capacity_of(stable, scene.seconds(2, 1))
        wanted_us = 1000 * max(_LEAST_THRESHOLD_MS, _SLACK * capacity["alone_p50_ms"])
        threshold_ms = next(edge for edge in EDGES_US if edge >= wanted_us) / 1000
        rate = max(4.0, min(_MOST_PER_S, capacity["per_s"] / 6))
        fault_s = 1.5 * threshold_ms / 1000 if fault == "slow" else 0.0
        split = _Split(stable, candidate, rate, threshold_ms, fault_s=fault_s)
        ticks = list(_ticks(split))
        last = ticks[-1]
        counted = split.answered(candidate)
        after = split.second(last.tick + 1, 0) if last.decision.action in TAKES_BACK else None
        numbers = {
            "fault": fault,
            "rate_per_s": rate,
            "threshold_ms": threshold_ms,
            "fault_tick": _FAULT_AT,
            "decisions": [[one.tick, one.weight_bp, str(one.decision.action), str(one.decision.code)] for one in ticks],
            "reason": last.decision.reason,
            "seconds": split.seen,
            "candidate_after_rollback": split.answered(candidate) - counted,
        }
    return _told(split, ticks, after, numbers)


def _ticks(split: _Split) -> Iterator[Walk]:
    """The product's decisions, each on a second of real traffic, until the rollout ends."""
    before = [split.second(-at, 0) for at in (3, 2, 1)]

    def feed(tick: int, weight_bp: int) -> Arms | None:
        if tick == _FAULT_AT:
            split.arm()
        return split.second(tick, weight_bp) if tick <= _LAST_TICK else None

    for one in walk(split.policy, feed, before=before):
        if one.decision.action in TAKES_BACK:
            split.rolled_back_at = time.monotonic()
        yield one


def _told(split: _Split, ticks: list[Walk], after: Arms | None, numbers: dict[str, Any]) -> Outcome:
    last, stable = ticks[-1], sum(one["stable"]["bad"][ERRORS] for one in split.seen)
    if last.tick < _FAULT_AT:
        slow = max(one["took_s"] for one in split.seen)
        sentence = f"The core decided {last.decision.action} before the fault: {last.decision.reason}"
        is_slow = slow > 3 * _TICK_S
        return (
            unknown(f"{sentence} The machine was slow meanwhile.", **numbers)
            if is_slow
            else Outcome(Verdict.REFUTED, sentence, numbers)
        )
    if after is None or split.rolled_back_at is None or split.fault_sent_at is None:
        return Outcome(Verdict.REFUTED, f"The core did not roll back: {last.decision.reason}", numbers)
    seconds = round(split.rolled_back_at - split.fault_sent_at, 2)
    asked = numbers["candidate_after_rollback"]
    sentence = (
        f"The core rolled back {seconds:.1f} s after the fault ({last.decision.code}): {last.decision.reason} After it the candidate's "
        f"server counted {asked} requests and stable's answered {after.stable.attempts - after.stable.bad[ERRORS]}."
    )
    is_whole = not asked and after.stable.attempts and not after.stable.bad[ERRORS] and not stable
    found = {**numbers, "fault_to_rollback_s": seconds}
    return Outcome(Verdict.PROVED if is_whole else Verdict.REFUTED, sentence, found)
