"""Named reads of a model's traces: when requests once came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from django.db.models import Count, QuerySet

from ledger.adapters.apart import run_sized
from ledger.core.errors import NotFound
from registry.models import ServedModel
from registry.storage import store
from validators.core.trace import read_kept
from validators.core.trace_shape import TraceShape, shape_of_kept
from validators.models import GateRun, Trace


@dataclass(frozen=True)
class TraceUse:
    """Whether the model's gate policy names a trace, and how many of its gate runs did."""

    in_policy: bool
    gate_runs: int

    @property
    def words(self) -> str:
        runs = f"{self.gate_runs} gate run{'' if self.gate_runs == 1 else 's'}" if self.gate_runs else ""
        return " and ".join(word for word in ("the gate policy" if self.in_policy else "", runs) if word)


def uses_of(model: ServedModel) -> dict[str, TraceUse]:
    """By digest, the traces that something uses."""
    load = model.gate_policy.get("load")
    now = load.get("trace") if isinstance(load, dict) else None
    runs = (
        GateRun.objects.filter(release__model=model, policy__load__trace__startswith="sha256:")
        .values_list("policy__load__trace")
        .annotate(runs=Count("pk"))
        .order_by()
    )
    found = {digest: TraceUse(digest == now, count) for digest, count in runs}
    return found if not isinstance(now, str) or now in found else {**found, now: TraceUse(True, 0)}


def traces_of(model: ServedModel) -> QuerySet[Trace]:
    return Trace.objects.filter(model=model).select_related("blob").order_by("-pk")


def trace_named(model: ServedModel, digest: str) -> Trace:
    """One of the model's traces. Raises NotFound."""
    found = traces_of(model).filter(digest=digest).first()
    if found is None:
        says = f"{model.slug} has no trace {digest}. Send it to the model's traces, or correct load.trace in its gate policy."
        raise NotFound("no_such_trace", says, digest=digest)
    return found


def trace_gaps(model: ServedModel, digest: str) -> Sequence[float]:
    """The gaps of one of the model's traces, in seconds. Raises NotFound."""
    return read_kept(_kept(trace_named(model, digest).blob_id))


@lru_cache(maxsize=256)
def trace_shape(digest: str) -> TraceShape:
    """What the arrivals of the trace with these bytes are like; its digest names them for good."""
    data = _kept(digest)
    found: TraceShape = run_sized(len(data), shape_of_kept, data)
    return found


def _kept(digest: str) -> bytes:
    with store().open(digest) as stream:
        return stream.read()
