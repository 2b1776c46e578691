"""A release under load: the product's load and resources gates at a third of its capacity, and 1.2 times the capacity."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.gpu_proof.judged import evidence_of, judged
from benchmarks.gpu_proof.outcome import Outcome, Verdict, unknown
from benchmarks.gpu_proof.scene import Scene, Served
from validators.core.gpu_checks import Window
from validators.core.load import arrivals, generator_limit, summarise
from validators.core.stages import stages_between
from validators.core.verdict import Judgement
from validators.core.verdict import Verdict as Gate
from validators.execution.gates import run_gate
from validators.execution.gates.context import GateContext
from validators.execution.gates.gpu import gpu_gate
from validators.execution.gates.load import load_gate
from validators.execution.runners import load as load_runner

_CLIENTS = 16
#: A load generator of one process keeps to this rate on a slow core.
_MOST_PER_S = 150.0
#: Requests that may wait at the end of the overload; the load generator has a thread for each that is unanswered.
_MOST_WAITING = 120
#: An objective that a healthy server meets on a machine with other work: so many times its median at leisure, at least so much.
_SLACK, _LEAST_SLO_MS = 30, 250
#: After a load whose verdict was `failed`, a capacity below this part of the first means that the machine changed.
_SAME_FRAC = 0.6


def capacity_of(served: Served, seconds: float) -> dict[str, float]:
    """Answers a second with every client busy, and the median of a lone request in ms."""
    alone = served.burst(8, 1)
    first = served.burst(4 * _CLIENTS, _CLIENTS)
    burst = served.burst(max(4 * _CLIENTS, int(first.per_s * seconds)), _CLIENTS)
    assert not burst.errors, f"{len(burst.errors)} of {len(burst.attempts)} requests failed: {burst.errors[0]}"
    times = sorted(one.done_s - one.sent_s for one in alone.attempts)
    return {
        "per_s": round(burst.per_s, 2),
        "alone_p50_ms": round(times[len(times) // 2] * 1000, 3),
        "clients": _CLIENTS,
    }


def policy_of(found: dict[str, float], seconds: float, **load: Any) -> dict[str, Any]:
    """At a third of the capacity, with an objective in multiples of a lone request's time."""
    return {
        "gates": ["load", "resources"],
        "load": {
            "rate_per_s": min(_MOST_PER_S, max(1.0, found["per_s"] / 3)),
            "duration_s": seconds,
            "slo_ms": max(_LEAST_SLO_MS, _SLACK * found["alone_p50_ms"]),
            "slo_quantile": 0.9,
            "least_dispersion": 1,
            "burst_s": 0,
            "timeout_s": 20,
            **load,
        },
        "resources": {"max_growth_bytes": 32_768, "min_requests": 100, "max_soak_s": 20},
    }


def load(scene: Scene) -> Outcome:
    served = scene.dense()
    found = capacity_of(served, scene.seconds(3, 1.5))
    policy = policy_of(found, scene.seconds(12, 4))
    good = run_gate("load", served.context(policy))
    if good.verdict is Gate.FAILED:
        again = capacity_of(served, scene.seconds(3, 1.5))
        if again["per_s"] < _SAME_FRAC * found["per_s"]:
            sentence = (
                "The machine answered far less after the load than before it, so that its failure proves nothing."
            )
            return unknown(sentence, capacity=found, again=again, good=evidence_of(good))
    strict = policy_of(found, scene.seconds(3, 1), slo_ms=max(0.05, found["alone_p50_ms"] / 4))
    bad = run_gate("load", served.context(strict))
    numbers = {
        "capacity": found,
        "policy": policy,
        "stages": good.evidence.get("stages"),
        "answered": good.evidence.get("answered"),
    }
    return judged(good, bad, twin="an objective of a quarter of its own median", numbers=numbers)


def overload(scene: Scene) -> Outcome:
    """Offers 1.2 times the capacity. The queue must take the difference, and the server must go on answering."""
    served, found = scene.dense(), scene.config.earlier.get("load", {}).get("capacity")
    if found is None:
        found = capacity_of(served, scene.seconds(3, 1.5))
    rate = 1.2 * found["per_s"]
    seconds = min(scene.seconds(5, 3), _MOST_WAITING / (rate - found["per_s"]))
    third = _offered(served, rate / 3.6, seconds)
    for lasts_s in (seconds, seconds / 2, seconds / 4):  # a slower machine than before has more requests waiting
        over = _offered(served, rate, lasts_s)
        if not over["unsent"]:
            break
    queued = [(one["stages"] or {}).get("queue_ms", 0.0) for one in (third, over)]
    numbers = {"capacity": found, "third": third, "over": over}
    if over["limited"] or over["unsent"] or over["stages"] is None:
        why = over["limited"] or f"{over['unsent']} requests were not sent"
        return unknown(f"The load generator could not offer that rate: {why}.", **numbers)
    kept = over["answered_per_s"] / found["per_s"]
    sentence = (
        f"At 1.2 times its capacity of {found['per_s']:.0f}/s the server answered {over['answered_per_s']:.0f}/s with {over['errors']} "
        f"errors; requests waited {queued[1]:.1f} ms in its queue, {queued[0]:.1f} ms at a third."
    )
    if over["errors"] or kept < 0.5:
        return Outcome(Verdict.REFUTED, sentence, numbers)
    return Outcome(Verdict.PROVED, sentence, numbers) if queued[1] > 2 * queued[0] else unknown(sentence, **numbers)


def _offered(served: Served, per_s: float, lasts_s: float) -> dict[str, Any]:
    """Answers a second at this rate, and a request's time by stage."""
    before, began = served.client.statistics(served.model), time.monotonic()
    schedule = arrivals(per_s, lasts_s, seed=3)
    attempts = load_runner.drive(served.requests(), schedule, timeout_s=20, progress=lambda sent: None)
    after, wall_s = served.client.statistics(served.model), time.monotonic() - began
    summary = summarise(attempts, duration_s=lasts_s, slo_ms=float("inf"))
    ended_s = max(one.done_s for one in attempts)
    return {
        "offered_per_s": round(per_s, 2),
        "seconds": round(lasts_s, 2),
        "answered_per_s": round((len(attempts) - summary.errors) / max(lasts_s, ended_s), 2),
        "errors": summary.errors - summary.unsent,
        "unsent": summary.unsent,
        "stages": stages_between(before, after, wall_s=wall_s, instances=1),
        "latency_ms": summary.latency_ms,
        "limited": generator_limit(summary, max_lag_ms=250) or "",
    }


def resources(scene: Scene) -> Outcome:
    """On the load step's requests and more; the twin is the same server under an envelope that declares far less."""
    served = scene.dense()
    earlier = scene.config.earlier.get("load", {})
    found = earlier.get("capacity") or capacity_of(served, scene.seconds(3, 1.5))
    policy = policy_of(found, scene.seconds(20, 6))
    policy["resources"]["max_soak_s"] = scene.seconds(20, 8)
    loaded = {"answered": earlier["answered"]} if earlier.get("answered") else {}

    def of(gate: str) -> Mapping[str, Any]:
        return loaded if gate == "load" else {}

    context = served.context(policy, earlier=of)
    good = run_gate("resources", context)
    small = {"host": {"memory_mib_min": 4}}
    if scene.is_gpu:
        small = {"accelerator": {"vendor": "nvidia", "memory_mib_peak_declared": 16}}
    bad = run_gate("resources", served.context(policy, envelope=small, earlier=of))
    return judged(good, bad, twin="an envelope that declares far less than it holds")


def gpu(scene: Scene) -> Outcome:
    """The product's gpu gate over the load step's time."""
    served = scene.dense()
    found = capacity_of(served, scene.seconds(3, 1.5))
    began_s = time.time()
    policy = policy_of(found, scene.seconds(6, 4))
    policy = {**policy, "gates": ["load", "gpu"], "gpu": {}}
    del policy["resources"]
    load_gate(served.context(policy))
    window, ended_s = Window("load", began_s, time.time()), time.time()
    while not served.meter.gpu_readings or served.meter.gpu_readings[-1].at_s < ended_s:
        time.sleep(0.1)
    good: Judgement = gpu_gate(_watching(served, policy, window))
    small = {"accelerator": {"vendor": "nvidia", "memory_mib_peak_declared": 16}}
    bad = gpu_gate(_watching(served, policy, window, envelope=small))
    return judged(good, bad, twin="an envelope of 16 MiB of GPU memory")


def _watching(served: Served, policy: dict[str, Any], window: Window, **more: Any) -> GateContext:
    return replace(served.context(policy, **more), gpus=lambda: served.meter.watch(window))
