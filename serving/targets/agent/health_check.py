"""Health check of a server by a real inference and by its liveness call; results are those of `serving/targets/core/health.py`."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from typing import Any

from registry.core.kinds import kind_of
from registry.core.kinds.kind import Progress, ServerKind
from serving.ports import InferenceError, InferenceServer
from serving.targets.agent import warmup
from serving.targets.core.health import HealthTracker, Probe, ProbeResult, Timeouts

#: Connections that an inference may open.
_SOCKETS = 4
#: Of the liveness call, in seconds, when its window is nearly over. It takes milliseconds, also while a model computes.
_LEAST_LIVE_S = 0.01


def check_health(
    server: InferenceServer, model: str, manifest: Mapping[str, Any], *, timeout_s: float
) -> tuple[ProbeResult, str]:
    """The probe's result, and what was wrong with the answer (empty when it was right).

    Raises OSError if this process has no free file descriptor.
    """
    sent_at = time.monotonic()
    serving, limits = manifest["serving"], warmup.limits_of(manifest)
    try:
        warmup.check(server.infer(model, warmup.requests(serving, limits)[0], timeout_s=timeout_s), serving)
    except InferenceError as error:
        if error.reason == "unreachable":
            require_sockets()
        died = kind_of(manifest).died
        is_dead = error.reason == "unreachable" or (bool(died) and died in error.message)
        probe = Probe.GONE if is_dead else _probe_of(error)
        return ProbeResult(probe, sent_at, time.monotonic()), f"a real inference failed: {error.message}"
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
        tells_live: whether the launcher lets the liveness call count, if the server kind does.
    """
    now = time.monotonic()
    look, trouble = ProbeResult(Probe.HELD, now, now), ""
    if seen.is_probe_due(now, timeouts):
        look, trouble = check_health(server, model, manifest, timeout_s=within_s[seen.late_since is not None])
    if look.probe not in (Probe.LATE, Probe.HELD):
        return look, trouble
    left_s = timeouts.silent_s - seen.silent_s(time.monotonic())
    tells_live = tells_live and kind_of(manifest).tells_live
    is_live = server.is_live(timeout_s=max(_LEAST_LIVE_S, min(live_within_s, left_s))) if tells_live else None
    is_asked = is_live is not False and (look.probe == Probe.LATE or seen.late_since is not None)
    done = _progress(server, model, kind_of(manifest)) if is_asked else Progress()
    return ProbeResult(look.probe, look.sent_at, time.monotonic(), done.finished, is_live, done.cost_s), trouble


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
    return Probe.LATE if error.reason in ("timeout", "full") else Probe.WRONG


def _progress(server: InferenceServer, model: str, kind: ServerKind) -> Progress:
    """Nothing of a server without statistics."""
    try:
        return kind.progress(server.statistics(model))
    except InferenceError:
        return Progress()
