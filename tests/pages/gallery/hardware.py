"""What takes GPUs and time: what agents read of GPUs, a gate run that watched them, and requests that were kept."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from django.utils import timezone

from registry.models import Release
from serving.models import Environment, Node
from serving.targets.agent.gpu_reader import GpuReader
from tests.core.test_gpu_health import judged as judged_gpu
from tests.pages.gallery.releases import SYSTEM, gate_run
from tests.support.fakes.nvml import replayed
from validators.actions.gate_runs import record_judgement
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.models import GateResult, GateRun

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


CAPACITY: dict[str, Any] = {
    "slo_ms": 250.0, "capacity_per_s": 96.2, "hardware": "NVIDIA L4", "protocol": "grpc",
    "generators": 2, "slo_quantile": 0.99, "confidence": 0.9, "budget_s": 600, "seconds": 598, "longest_frac": 0.1,
    "points": [
        _point(20, 11, 1), _point(40, 12, 3), _point(80, 14, 9), _point(160, 19, 90, "refuted", over=610),
        _point(96.2, 16, 20, "proven", over=310, seconds=478, purpose="confirm"),
    ],
}  # fmt: skip
