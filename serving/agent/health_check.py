"""Health check of a server by a real inference; the results are those of `serving/core/health.py`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from serving.agent import warmup
from serving.core.health import Probe, ProbeResult
from serving.ports import InferenceError, InferenceServer

#: Triton's words. Nothing heals such a process: even one that was only stopped takes its whole server down with the next
#: request once it goes on. Source: observed with Triton 2.51, python backend, SIGSTOP and SIGCONT to the stub.
_STUB_DIED = "is not healthy"


def check_health(
    server: InferenceServer, model: str, serving: dict[str, Any], *, limits: Mapping[str, Any], timeout_s: float
) -> tuple[ProbeResult, str]:
    """The probe's result, and what was wrong with the answer (empty when it was right). `limits` are the envelope's."""
    sent_at = time.monotonic()
    try:
        warmup.check(server.infer(model, warmup.requests(serving, limits)[0], timeout_s=timeout_s), serving)
    except InferenceError as error:
        probe = _probe_of(error)
        finished = _finished(server, model) if probe == Probe.LATE else None
        return ProbeResult(probe, sent_at, time.monotonic(), finished), f"a real inference failed: {error.message}"
    return ProbeResult(Probe.RIGHT, sent_at, time.monotonic()), ""


def _probe_of(error: InferenceError) -> Probe:
    if error.reason == "unreachable" or _STUB_DIED in error.message:
        return Probe.GONE
    if error.reason in ("timeout", "full"):
        return Probe.LATE
    return Probe.WRONG


def _finished(server: InferenceServer, model: str) -> int | None:
    """Inferences that went well since the load; None if the server does not say.

    Failed ones are no progress: a server whose model hangs refuses requests for a full queue and counts them as failed.
    Triton's JSON writes 64-bit counts as text and leaves zeros out.
    """
    try:
        found = server.statistics(model).get("model_stats", [])
    except InferenceError:
        return None
    return sum(int(one.get("inference_stats", {}).get("success", {}).get("count", 0)) for one in found)
