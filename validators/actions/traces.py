"""What may happen to traces: one is added, of which the gaps are kept alone; one that nothing uses is removed."""

from __future__ import annotations

from django.db import transaction

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from ledger.adapters.apart import run_sized
from ledger.core.canonical import sha256_of
from ledger.core.errors import Invalid, StateChanged
from registry.actions import put_blob
from registry.actions.served_models import lock_model
from registry.models import ServedModel
from validators.core.trace import read_recording
from validators.models import Trace
from validators.queries.traces import trace_named, uses_of

#: Of the recording that is sent, which may tell more of each request than when it came.
MAX_RECORDING_BYTES = 16 * 2**20


def add_trace(*, actor: Actor, model: ServedModel, recording: bytes) -> tuple[Trace, bool]:
    """(the trace of this recording, whether it was added now). Nothing of it is kept but the gaps between its requests.

    Raises:
        Invalid: `trace_invalid`, with the first line that cannot be read.
    """
    require(actor, Verb.EDIT_MODEL, model.team.slug, model.slug)
    kept, gaps, lasts_s = _read(recording)
    blob = put_blob(kept)
    with transaction.atomic():
        found, is_new = Trace.objects.get_or_create(
            model=model,
            digest=sha256_of(kept),
            defaults={
                "blob": blob,
                "gaps": gaps,
                "lasts_s": lasts_s,
                "created_by_id": actor.user_id,
            },
        )
        if is_new:
            append_event(
                verb="trace.added",
                subject_type="model",
                subject_id=model.slug,
                actor=actor,
                facts={"digest": found.digest, "gaps": found.gaps},
            )
    return found, is_new


def remove_trace(*, actor: Actor, model: ServedModel, digest: str) -> None:
    """The trace is gone from the model; its bytes go where nothing else has them.

    Raises:
        NotFound: `no_such_trace`.
        StateChanged: `trace_used`, by the model's gate policy, or by a gate run, whose evidence names it.
    """
    require(actor, Verb.EDIT_MODEL, model.team.slug, model.slug)
    with transaction.atomic():
        now = lock_model(model)  # and its policy with it
        found = hold_trace(now, digest)
        if used := uses_of(now).get(digest):
            fix = "A trace that is evidence stays; name another one in load.trace for runs to come."
            raise StateChanged("trace_used", f"{model.slug} uses {digest}: {used.words}. {fix}", digest=digest)
        found.delete()
        append_event(
            verb="trace.removed",
            subject_type="model",
            subject_id=model.slug,
            actor=actor,
            facts={"digest": digest, "gaps": found.gaps},
        )


def hold_trace(model: ServedModel, digest: str) -> Trace:
    """One of the model's traces, which nobody removes until the commit. Raises NotFound."""
    list(Trace.objects.select_for_update(no_key=True).filter(model=model, digest=digest))
    return trace_named(model, digest)


def _read(recording: bytes) -> tuple[bytes, int, float]:
    """(the bytes that are kept, the number of gaps, their sum in seconds). Raises Invalid."""
    try:
        if len(recording) > MAX_RECORDING_BYTES:
            raise ValueError(f"it has more than {MAX_RECORDING_BYTES // 2**20} MiB")
        found: tuple[bytes, int, float] = run_sized(len(recording), read_recording, recording)
    except ValueError as error:
        raise Invalid("trace_invalid", f"The trace cannot be read: {error}.") from None
    return found
