"""Where the time of inferences went, by the server's own counters: a queue, the model, or the way there and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The protocol's names of the stages (Open Inference Protocol v2, statistics extension) → ours.
_STAGES = {
    "queue": "queue_ms",
    "compute_input": "input_ms",
    "compute_infer": "infer_ms",
    "compute_output": "output_ms",
}
_COMPUTE = ("compute_input", "compute_infer", "compute_output")


def stages_between(
    before: Mapping[str, Any], after: Mapping[str, Any], *, wall_s: float, instances: int
) -> dict[str, float] | None:
    """The means, in ms for each request, of what the server did between two of its statistics; None where it did nothing.

    {"total_ms", "queue_ms", "input_ms", "infer_ms", "output_ms", "overhead_ms", "mean_batch", "busy_frac"}. Every request of a batch
    is charged the whole batch's time, so that `infer_ms` is what it waited for; `busy_frac`, the share of `wall_s` (seconds) in
    which its `instances` computed, counts each batch once. `queue_ms` holds both the wait for companions and for an instance.
    Source: Triton's statistics extension; the counters follow an answer by an instant, so the last requests may lack.
    """
    first, last = (_model(one) for one in (before, after))
    requests = _grown(first, last, "success", "count")
    if requests <= 0 or wall_s <= 0:
        return None
    found = {name: _grown(first, last, stage, "ns") / requests / 1e6 for stage, name in _STAGES.items()}
    total = _grown(first, last, "success", "ns") / requests / 1e6
    runs = _number(last, "execution_count") - _number(first, "execution_count")
    items = _number(last, "inference_count") - _number(first, "inference_count")
    out = {
        "total_ms": total,
        **found,
        "overhead_ms": max(0.0, total - sum(found.values())),
        "mean_batch": items / runs if runs else 0.0,
        "busy_frac": (_computed_ns(last) - _computed_ns(first)) / 1e9 / (wall_s * max(1, instances)),
    }
    return {name: round(value, 4) for name, value in out.items()}


def _model(statistics: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one model's statistics; a server of ours has one."""
    found = statistics.get("model_stats") or [{}]
    return found[0]  # type: ignore[no-any-return]


def _number(holder: Mapping[str, Any], name: str) -> float:
    """A counter; JSON of the protocol leaves a 0 out, and writes 64 bits as text."""
    return float(holder.get(name) or 0)


def _grown(first: Mapping[str, Any], last: Mapping[str, Any], stage: str, name: str) -> float:
    then, now = ((one.get("inference_stats") or {}).get(stage) or {} for one in (first, last))
    return _number(now, name) - _number(then, name)


def _computed_ns(model: Mapping[str, Any]) -> float:
    return sum(_number(batch.get(stage) or {}, "ns") for batch in model.get("batch_stats") or () for stage in _COMPUTE)
