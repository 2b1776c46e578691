"""Times the first inferences of a server that has just become ready."""

from __future__ import annotations

from collections.abc import Callable

from serving.ports import InferenceServer
from validators.core.inputs import Arrays


def first_latencies_ms(
    server: InferenceServer,
    model: str,
    batch: Arrays,
    *,
    count: int,
    timeout_s: float,
    progress: Callable[[int, int], None],
) -> list[float]:
    """`count` inferences, one after the other, in ms. The connection is opened before the first. Raises InferenceError."""
    server.is_live()
    latencies = []
    for done in range(count):
        progress(done, count)
        latencies.append(server.infer(model, batch, timeout_s=timeout_s).latency_s * 1000)
    progress(count, count)
    return latencies
