"""What a node's agent read of its GPUs, beside when the gates of a run measured there."""

from __future__ import annotations

from serving.targets.port import TrialServer
from validators.core.gates import WATCHED
from validators.core.gpu_checks import Watch, window_of
from validators.core.verdict import Verdict
from validators.models import GateRun


def watch_of(gate_run: GateRun, server: TrialServer | None) -> Watch:
    """Since this very server came up; of an earlier one nothing counts."""
    if server is None:
        return Watch(0, 0.0, why_not="its server is gone")
    windows, unwatched = [], []
    for one in gate_run.results.filter(gate__in=WATCHED, ended_at__isnull=False).exclude(verdict=Verdict.SKIPPED):
        began_at, ended_at = one.started_at, one.ended_at
        is_its = began_at is not None and began_at >= server.started_at
        window = window_of(one.gate, one.evidence, ended_at.timestamp()) if is_its and ended_at else None
        if window is None:
            unwatched.append(one.gate)
        else:
            windows.append(window)
    last, readings = server.gpus(), server.gpu_readings()
    return Watch(
        server.key,
        server.started_at.timestamp(),
        sorted(windows, key=lambda one: one.began_s),
        unwatched,
        readings or (),
        "its platform reads no GPUs" if readings is None else last.unknown if last else "",
        is_read=bool(last and last.gpus),
    )
