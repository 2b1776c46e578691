"""What a node's agent read of its GPUs, beside when the gates of a run measured there."""

from __future__ import annotations

from serving.core.gpu import reading_of
from serving.models import Server
from serving.queries import gpu_readings_of
from validators.core.gpu_checks import MEASURING, Watch, window_of
from validators.models import GateRun


def watch_of(gate_run: GateRun, server: Server | None) -> Watch:
    """Since this very server came up; of an earlier one nothing counts."""
    if server is None:
        return Watch(0, 0.0, why_not="its server is gone")
    since_s, node = server.started_at.timestamp(), server.deployment.node
    measured = gate_run.results.filter(gate__in=MEASURING, started_at__gte=server.started_at, ended_at__isnull=False)
    windows = [window_of(one.gate, one.evidence, one.ended_at.timestamp()) for one in measured if one.ended_at]
    last = reading_of(node.gpus)
    return Watch(
        server.pk,
        since_s,
        sorted((one for one in windows if one is not None), key=lambda one: one.began_s),
        gpu_readings_of(node.name, since_s=since_s),
        last.unknown if last else "",
    )
