"""The ports to outside systems: what Sluicegate asks of an inference server, a launcher and a gateway.

Each port has one error family (see `PortError`), one adapter for each real system, and one honest fake in
`tests/support/fakes/ports.py`; `tests/contracts/` runs the same suite on both. Adapters never decide pass or fail.
"""

from __future__ import annotations

from serving.ports.counters import (
    FIRST_TEXT,
    LARGEST_GAP,
    ArmCounters,
    CounterHistory,
    CounterQuery,
    CounterSample,
    ExternalMetrics,
    GatewayCounters,
    GatewayError,
    HostCounters,
    HostCounts,
    MetricsError,
    Spread,
    TenantCounters,
    TrafficCounters,
)
from serving.ports.errors import PortError
from serving.ports.servers import (
    GRPC,
    HTTP,
    Inference,
    InferenceError,
    InferenceServer,
    Launcher,
    LaunchError,
    LaunchSpec,
    Parcel,
    PreparedRequests,
    RunningServer,
    Tensors,
    TensorSpec,
)

__all__ = [
    "FIRST_TEXT",
    "GRPC",
    "HTTP",
    "LARGEST_GAP",
    "ArmCounters",
    "CounterHistory",
    "CounterQuery",
    "CounterSample",
    "ExternalMetrics",
    "GatewayCounters",
    "GatewayError",
    "HostCounters",
    "HostCounts",
    "Inference",
    "InferenceError",
    "InferenceServer",
    "LaunchError",
    "LaunchSpec",
    "Launcher",
    "MetricsError",
    "Parcel",
    "PortError",
    "PreparedRequests",
    "RunningServer",
    "Spread",
    "TenantCounters",
    "TensorSpec",
    "Tensors",
    "TrafficCounters",
]
