"""Reads a node's GPUs from the DCGM exporter, by way of Prometheus: where the agent itself has no NVML."""

from __future__ import annotations

from serving.ports import MetricsError
from serving.targets.core.dcgm import as_series, questions, reading_from
from serving.targets.core.gpu import GpuReading
from serving.traffic.adapters.prometheus import Prometheus

#: An Xid is told for so long. The gate counts those since its server came up, by when the agent heard of them.
_WINDOW_S = 300.0
_TIMEOUT_S = 3.0


def read_dcgm(prometheus: Prometheus, selector: str) -> GpuReading:
    """What it says now, as of when it was scraped last. `selector`: the node's series, such as `Hostname="a"`. Raises nothing."""
    asked = questions(selector, _WINDOW_S)
    try:
        answers = prometheus.vectors(list(asked.values()), timeout_s=_TIMEOUT_S)
    except MetricsError as error:
        return GpuReading(0.0, unknown=error.message, source="dcgm")
    return reading_from(dict(zip(asked, map(as_series, answers), strict=True)), _WINDOW_S)
