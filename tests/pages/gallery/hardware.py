"""What takes GPUs and time: what agents read of GPUs, a gate run that watched them, and requests that were kept."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from django.utils import timezone

from ledger.core.canonical import sha256_of
from registry.models import Release, ServedModel
from serving.agent.gpu_reader import GpuReader
from serving.models import Environment, Node
from tests.core.test_gpu_health import judged as judged_gpu
from tests.pages.gallery.releases import SYSTEM, gate_run
from tests.support.fakes.nvml import replayed
from validators.actions.gate_runs import record_judgement
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.models import GateResult, GateRun, KeptRequest

#: By node: the recording that its agent reads, and which of its frames.
READ = {"gpu-1": ("well", 0), "gpu-2": ("ecc_uncorrected", 2), "gpu-3": ("unsupported", 0)}
#: The machine that is silent, and for how long.
SILENT, SILENT_S = "gpu-3", 7 * 60.0


def gpus_are_read() -> None:
    """A moment ago; of the silent one just before it fell silent."""
    for node, (recording, frame) in READ.items():
        at_s = time.time() - (SILENT_S if node == SILENT else 0.0)
        with replayed(recording) as library:
            reader = GpuReader(now=partial(float, at_s))
            reader.read()
            library.at = frame
            Node.objects.filter(name=node).update(gpus=reader.read().as_json())


def watched_run(release: Release, environment: Environment) -> GateRun:
    """Of the capacity, and what the GPU said meanwhile: it was too hot."""
    policy = parse_policy({"gates": ["capacity", "gpu"], "load": {"slo_ms": 250}})
    run = gate_run(release, environment, policy)
    found = {
        "capacity": Judgement(Verdict.UNDECIDED, NOT_ENOUGH, CAPACITY),
        "gpu": judged_gpu("throttled"),
    }
    for result in run.results.order_by("position"):
        GateResult.objects.filter(pk=result.pk).update(started_at=timezone.now())
        result.refresh_from_db()
        record_judgement(actor=SYSTEM, gate_result=result, judgement=found[result.gate])
    return run


def requests_are_kept(model: ServedModel) -> None:
    KeptRequest.objects.bulk_create(
        KeptRequest(
            model=model, release="r1", inputs={"text": f"Words of somebody, {n}."}, answers={"probabilities": [0.2, 0.8]},
            digest=sha256_of(str(n).encode()), rank=n, size_bytes=70, at=timezone.now(),
        )
        for n in range(40)
    )  # fmt: skip


def _point(
    rate: float,
    p50_ms: float,
    queue_ms: float,
    found: str = "open",
    *,
    over: int = 2,
    seconds: int = 30,
    purpose: str = "probe",
) -> dict[str, Any]:
    stages = {
        "queue_ms": queue_ms, "input_ms": 0.4, "infer_ms": p50_ms, "output_ms": 0.3, "overhead_ms": 0.8,
        "mean_batch": 1 + queue_ms / 4, "total_ms": queue_ms + p50_ms + 1.5,
    }  # fmt: skip
    latency = {"p50": p50_ms + queue_ms, "p95": 2 * p50_ms + 3 * queue_ms, "p99": 3 * p50_ms + 5 * queue_ms}
    return {
        "rate_per_s": rate, "purpose": purpose, "seconds": seconds, "requests": int(seconds * rate), "over": over,
        "errors": 0, "achieved_per_s": rate, "goodput_per_s": round(rate - over / seconds, 3),
        "latency_ms": latency, "lag_p99_ms": 0.2, "dispersion": 3.0,
        "stages": stages, "found": found,
    }  # fmt: skip


#: As the gate says it of what follows.
NOT_ENOUGH = (
    "Holds 96.2 requests/s: of 45983 in 478 s, 310 were over 250 ms, and at most 1.00% may be; proven at confidence 0.9. "
    "Its envelope declares 120 requests/s, which is neither proven nor refuted."
)


def _batching(
    size: int, delay_us: int, goodput_per_s: float, more: float | None = None, why: str = ""
) -> dict[str, Any]:
    """A row of a sweep, at one rate; the release's own where nothing is compared."""
    found = None if more is None else {"value": more, "low": more - 3.1, "high": more + 3.1}
    point = {
        "rate_per_s": 115.4, "requests": 923, "over": 40, "errors": 0, "goodput_per_s": goodput_per_s,
        "latency_ms": {"p50": 40.0, "p95": 9000 / goodput_per_s, "p99": 20000 / goodput_per_s}, "mean_batch": 2.5,
        "queue_frac": 0.41, "busy_frac": 0.87, "lag_p99_ms": 0.3, "limited": "", "more_per_s": found, "later_ms": None,
    }  # fmt: skip
    own = (size, delay_us) == (8, 0)
    return {
        "max_batch_size": size, "max_queue_delay_us": delay_us, "is_own": own, "why": why, "points": [] if why else [point],
    }  # fmt: skip


SWEEP: dict[str, Any] = {
    "budget_s": 240, "seconds": 8, "of_proven": [1.2], "confidence": 0.9, "best": 2, "alike": [],
    "says": "At 115.4 requests/s max_batch_size 8, max_queue_delay_us 1000 answers 12.3 a second more within the objective than "
    "the release's own (9.2 to 15.4).",
    "rows": [
        _batching(8, 0, 96.0), _batching(4, 0, 91.0, -5.0), _batching(8, 1000, 108.3, 12.3), _batching(4, 1000, 97.0, 1.0),
        _batching(16, 0, 1.0, why="the release declares max_batch_size 8"), _batching(8, 0, 95.5, -0.5),
    ],
}  # fmt: skip

CAPACITY: dict[str, Any] = {
    "sweep": SWEEP,
    "slo_ms": 250.0, "capacity_per_s": 96.2, "hardware": "NVIDIA L4", "protocol": "grpc",
    "generators": 2, "slo_quantile": 0.99, "confidence": 0.9, "budget_s": 600, "seconds": 598, "longest_frac": 0.1,
    "points": [
        _point(20, 11, 1), _point(40, 12, 3), _point(80, 14, 9), _point(160, 19, 90, "refuted", over=610),
        _point(96.2, 16, 20, "proven", over=310, seconds=478, purpose="confirm"),
    ],
    "batches": [
        {"items": n, "requests": 40, "items_per_s": 90 * n**0.7, "latency_ms": {"p50": 11 * n**0.3, "p95": 14 * n**0.3}}
        for n in (1, 2, 4, 8, 16)
    ],
}  # fmt: skip
