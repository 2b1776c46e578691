"""Health check of a server by a real inference and by its liveness call; results are those of `serving/core/health.py`."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from typing import Any

from serving.agent import warmup
from serving.core.health import HealthTracker, Probe, ProbeResult, Timeouts
from serving.ports import InferenceError, InferenceServer

#: Triton's words. Nothing heals such a process: even one that was only stopped takes its whole server down with the next
#: request once it goes on. Source: observed with Triton 2.51, python backend, SIGSTOP and SIGCONT to the stub.
_STUB_DIED = "is not healthy"
#: Connections that an inference may open.
_SOCKETS = 4
#: Of the liveness call, in seconds, when its window is nearly over. It takes milliseconds, also while a model computes.
_LEAST_LIVE_S = 0.01
#: Phases of a request in which an instance is busy, as Triton's statistics name them.
_ON_INSTANCE = ("compute_input", "compute_infer", "compute_output")


def check_health(
    server: InferenceServer, model: str, serving: dict[str, Any], *, limits: Mapping[str, Any], timeout_s: float
) -> tuple[ProbeResult, str]:
    """The probe's result, and what was wrong with the answer (empty when it was right). `limits` are the envelope's.

    Raises OSError if this process has no free file descriptor.
    """
    sent_at = time.monotonic()
    try:
        warmup.check(server.infer(model, warmup.requests(serving, limits)[0], timeout_s=timeout_s), serving)
    except InferenceError as error:
        if error.reason == "unreachable":
            require_sockets()
        return ProbeResult(_probe_of(error), sent_at, time.monotonic()), f"a real inference failed: {error.message}"
    return ProbeResult(Probe.RIGHT, sent_at, time.monotonic()), ""


def look_at(
    server: InferenceServer,
    model: str,
    manifest: Mapping[str, Any],
    *,
    seen: HealthTracker,
    timeouts: Timeouts,
    within_s: tuple[float, float],
    live_within_s: float,
    tells_live: bool,
) -> tuple[ProbeResult, str]:
    """One look at the server, and its trouble in words: an inference if one is due, otherwise its signs of life.

    Args:
        within_s: how long an inference may take, after an answer and after a late probe.
        live_within_s: how long the liveness call may take, which a server answers in milliseconds.
        tells_live: whether this server answers the liveness call while its model computes.
    """
    now = time.monotonic()
    look, trouble = ProbeResult(Probe.HELD, now, now), ""
    if seen.is_probe_due(now, timeouts):
        timeout_s, limits = within_s[seen.late_since is not None], warmup.limits_of(manifest)
        look, trouble = check_health(server, model, manifest["serving"], limits=limits, timeout_s=timeout_s)
    if look.probe not in (Probe.LATE, Probe.HELD):
        return look, trouble
    left_s = timeouts.silent_s - seen.silent_s(time.monotonic())
    is_live = server.is_live(timeout_s=max(_LEAST_LIVE_S, min(live_within_s, left_s))) if tells_live else None
    is_asked = is_live is not False and (look.probe == Probe.LATE or seen.late_since is not None)
    finished, cost_s = _finished(server, model) if is_asked else (None, None)
    return ProbeResult(look.probe, look.sent_at, time.monotonic(), finished, is_live, cost_s), trouble


def require_sockets() -> None:
    """Raises OSError if this process can open no connection now. Then *unreachable* is no evidence on the server."""
    with contextlib.ExitStack() as opened:
        for _ in range(_SOCKETS):
            opened.enter_context(socket.socket())


def gone() -> ProbeResult:
    """The look at a server without a process."""
    now = time.monotonic()
    return ProbeResult(Probe.GONE, now, now)


def _probe_of(error: InferenceError) -> Probe:
    if error.reason == "unreachable" or _STUB_DIED in error.message:
        return Probe.GONE
    if error.reason in ("timeout", "full"):
        return Probe.LATE
    return Probe.WRONG


def _finished(server: InferenceServer, model: str) -> tuple[int | None, float | None]:
    """Number of inferences that went well since the load, and their mean time on an instance in seconds.

    Both are None if the server has no statistics. Failed inferences are no progress: a server whose model hangs refuses
    requests for a full queue and counts them as failed. Triton's JSON has 64-bit counts as text and leaves zeros out.
    """
    try:
        rows = [row.get("inference_stats", {}) for row in server.statistics(model).get("model_stats", [])]
    except InferenceError:
        return None, None

    def total(phase: str, field: str) -> int:
        return sum(int(row.get(phase, {}).get(field, 0)) for row in rows)

    runs, busy_ns = total("compute_infer", "count"), sum(total(phase, "ns") for phase in _ON_INSTANCE)
    return total("success", "count"), busy_ns / runs / 1e9 if runs else None
