"""Two servers on one machine, on one GPU if there is one: each answers its own, and the product sees the neighbour."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from benchmarks.gpu_proof.made import ITEM
from benchmarks.gpu_proof.outcome import Outcome, Verdict, unknown
from benchmarks.gpu_proof.scene import Scene, Served
from benchmarks.gpu_proof.steps.load import capacity_of
from validators.core.gpu_checks import Finding, Window, checks_of, own_gpus
from validators.core.load import arrivals, summarise
from validators.execution.runners import load as load_runner


def two_servers(scene: Scene) -> Outcome:
    """p99 of one server alone and beside a neighbour at full load, and whether both answer their own function meanwhile."""
    scene.clear()
    seconds = scene.seconds(6, 2)
    with scene.served(scene.make.dense("first")) as first:
        rate = max(2.0, min(100.0, capacity_of(first, scene.seconds(2, 0.5))["per_s"] / 4))
        alone = _asked(first, rate, seconds)
        with scene.served(scene.make.dense("second", scale=3)) as second:
            ended = threading.Event()
            neighbour: dict[str, Any] = {}
            thread = threading.Thread(target=_busy, args=(second, ended, neighbour))
            thread.start()
            try:
                beside = _asked(first, rate, seconds)
                answers = [_one(first), _one(second)]
            finally:
                ended.set()
                thread.join()
        left = _one(first)
        windows = {"alone": alone["window"], "beside": beside["window"]} if scene.is_gpu else {}
        seen = {name: _alone(first, window) for name, window in windows.items()}
    numbers = {"rate_per_s": rate, "alone": alone, "beside": beside, "neighbour": neighbour, "seen": seen}
    assert answers == [2.0, 3.0], f"beside each other the servers answered {answers} where 2 and 3 are right"
    assert left == 2.0, f"after its neighbour's end the first server answered {left}"
    errors = alone["errors"] + beside["errors"] + neighbour.get("errors", 0)
    assert not errors, f"{errors} requests failed: {numbers}"
    sentence = (
        f"p99 was {alone['p99_ms']:.1f} ms alone and {beside['p99_ms']:.1f} ms beside a neighbour that answered "
        f"{neighbour['per_s']:.0f}/s; both answered their own function, and the first went on after the other's end."
    )
    if scene.is_gpu:
        wanted = {"alone": Finding.WELL.value, "beside": Finding.PERF_INVALID.value}
        sentence = f"{sentence} The check `alone` found {seen['alone']} and {seen['beside']}."
        if Finding.UNKNOWN.value in seen.values():
            return unknown(sentence, **numbers)
        return Outcome(Verdict.PROVED if seen == wanted else Verdict.REFUTED, sentence, numbers)
    return Outcome(Verdict.PROVED, sentence, numbers)


def _one(served: Served) -> float:
    """The server's answer to 1."""
    return float(served.infer({"x": np.ones((1, ITEM), np.float32)})["y"][0, 0])


def _asked(served: Served, rate: float, seconds: float) -> dict[str, Any]:
    began_s, schedule = time.time(), arrivals(rate, seconds, seed=7)
    attempts = load_runner.drive(served.requests(), schedule, timeout_s=20, progress=lambda sent: None)
    summary = summarise(attempts, duration_s=seconds, slo_ms=float("inf"))
    latency = {name: summary.latency_ms.get(name) for name in ("p50", "p99", "max")}
    found = {f"{name}_ms": value for name, value in latency.items()}
    return {**found, "requests": summary.requests, "errors": summary.errors, "window": [began_s, time.time()]}


def _busy(served: Served, ended: threading.Event, result: dict[str, Any]) -> None:
    """Keeps four requests in flight."""
    requests, answered, errors, began = served.requests(), 0, 0, time.monotonic()

    def ask() -> None:
        nonlocal answered, errors
        while not ended.is_set():
            try:
                requests.send(0, timeout_s=20)
                answered += 1
            except Exception:  # counted, and the step reports them
                errors += 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result |= {"per_s": round(answered / (time.monotonic() - began), 2), "errors": errors}


def _alone(served: Served, window: list[float]) -> str:
    """Finding of the product's check `alone` in that time, or `unknown` if no GPU listed the server."""
    watch = served.meter.watch(Window("load", *window))
    found = [
        check
        for uuid in own_gpus(watch)
        for check in checks_of(watch, uuid, {"alone": True, "max_power_capped_frac": None}, None)
    ]
    return next((check.finding.value for check in found if check.name == "alone"), Finding.UNKNOWN.value)
