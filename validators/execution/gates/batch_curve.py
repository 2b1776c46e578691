"""What a request of more items costs: the latency of one item, two, four … in a request, one request after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from serving.ports import InferenceError
from validators.core.batches import doubled
from validators.core.inputs import same_shapes, stack
from validators.execution.gates.context import GateContext, example_items

_MOST_ITEMS = 64
#: Of one size: enough for a median, and for a 95th percentile that is one.
_LEAST_REQUESTS, _MOST_REQUESTS = 3, 40


def batch_curve(context: GateContext, *, seconds: float, beat: Callable[[], None]) -> list[dict[str, Any]]:
    """[{"items", "requests", "latency_ms": {"p50", "p95"}, "items_per_s"}], a size each up to the greatest, within some `seconds`.

    Nobody else asks, so that this is what a batch costs and no queue. A size that the server refuses ends the curve: that is
    for the contract gate to judge. `beat` is called before each request.
    """
    timeout_s = float(context.policy.of("load")["timeout_s"])
    examples = example_items(context, _MOST_ITEMS)
    alike = [one for one in examples if same_shapes(one, examples[0])]
    sizes = doubled(int(context.serving["max_batch_size"]))
    curve: list[dict[str, Any]] = []
    for size in sizes:
        inputs = stack([alike[at % len(alike)] for at in range(size)], has_batch_axis=True)
        took_s: list[float] = []
        until = time.monotonic() + seconds / len(sizes)
        while len(took_s) < _MOST_REQUESTS and (len(took_s) < _LEAST_REQUESTS or time.monotonic() < until):
            beat()
            try:
                took_s.append(context.server.infer(context.model, inputs, timeout_s=timeout_s).latency_s)
            except InferenceError:
                return curve
        p50, p95 = np.quantile(took_s, [0.5, 0.95])
        curve.append(
            {
                "items": size,
                "requests": len(took_s),
                "latency_ms": {"p50": round(p50 * 1000, 3), "p95": round(p95 * 1000, 3)},
                "items_per_s": round(size / float(np.mean(took_s)), 3),
            }
        )
    return curve
