"""Named reads of a model's traces: when requests once came."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from ledger.core.errors import NotFound
from registry.models import ServedModel
from registry.storage import store
from validators.core.trace import read_kept
from validators.models import Trace


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
    with store().open(trace_named(model, digest).blob_id) as stream:
        return read_kept(stream.read())
