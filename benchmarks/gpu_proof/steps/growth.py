"""A release that keeps memory for each request is found, and the same release without the leak is not."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.gpu_proof.judged import judged
from benchmarks.gpu_proof.outcome import Outcome
from benchmarks.gpu_proof.scene import Scene, Served
from benchmarks.gpu_proof.steps.load import capacity_of, policy_of
from validators.core.answered import answered_at, ended_at
from validators.core.growth import growth_of
from validators.core.load import arrivals
from validators.core.resources import grows, judge_resources
from validators.core.verdict import Judgement
from validators.execution.runners import load as load_runner

#: On a device the allocator takes whole blocks: a leak of this size grows in nearly every stretch.
_LEAK_BYTES = {"cpu": 256 << 10, "gpu": 1 << 20}
_LEAST_RATE_PER_S = 20.0


def growth(scene: Scene) -> Outcome:
    """By memory of the server's processes on the host; on a GPU by device memory of its processes."""
    leak = _LEAK_BYTES[scene.config.kind]
    scene.clear()
    manifests = (scene.make.dense("honest"), scene.make.dense("leaking", leak_bytes=leak))
    with scene.all_served(*manifests) as servers:
        honest, leaking = (_judged(scene, served) for served in servers)
    return judged(honest, leaking, twin=f"a leak of {leak >> 10} KiB a request")


def _judged(scene: Scene, served: Served) -> Judgement:
    capacity = capacity_of(served, scene.seconds(2, 0.5))
    policy = policy_of(capacity, 1.0)
    rate, seconds = float(policy["load"]["rate_per_s"]), scene.seconds(10, 4)
    schedule = arrivals(max(_LEAST_RATE_PER_S, rate), seconds, seed=5)
    attempts = load_runner.drive(served.requests(), schedule, timeout_s=20, progress=lambda sent: None)
    answered = answered_at(ended_at(attempts, time.time()))
    if answered is None:
        raise RuntimeError("no request ended")
    readings = served.meter.between(answered.began_s, answered.ended_s)
    limits = served.context(policy).policy.of("resources")
    if not scene.is_gpu:
        return judge_resources(readings, answered, limits)
    requests = answered.until([one.at_s for one in readings])
    levels = [one.use.gpu_memory_bytes for one in readings]
    of = "its processes"
    if None in levels:  # in a container the driver's process ids may be others: nothing else asks for memory meanwhile
        of, levels = "the device", served.meter.device_memory(readings)
    points = [(at, float(level)) for at, level in zip(requests, levels, strict=True) if level is not None]
    growth = growth_of(points, confidence=float(limits["confidence"])) if points else None
    numbers: dict[str, Any] = {"memory_of": of, "points": points[:: max(1, len(points) // 200)]}
    verdict = grows(growth, len(points), answered.requests, limits)
    return Judgement(verdict.verdict, verdict.reason, {**numbers, "growth": growth.as_evidence() if growth else None})
