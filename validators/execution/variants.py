"""The release under another batching, on a server beside its own: asked for, waited for, kept, and given up.

The server ends by itself a term after its last word, so that a worker that dies leaves nothing behind; and the release's
own server, which later gates ask, is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

from accounts.core.access import Actor
from serving.actions import ask_variant, prolong_variant
from serving.core.variants import Batching
from serving.models import Deployment, Variant
from serving.ports import InferenceServer
from serving.wiring import inference_server
from validators.execution.gates.context import NotServed

_TERM_S = 30.0
_PROLONG_EVERY_S = 5.0
_POLL_S = 0.25
#: How long a server that is given up may take to be gone.
_GONE_WITHIN_S = 20.0


@contextmanager
def served(
    deployment: Deployment, batching: Batching, *, actor: Actor, wait_s: float, beat: Callable[[], None]
) -> Iterator[tuple[InferenceServer, Callable[[], None]]]:
    """Implements `validators.execution.gates.context.Variants`."""
    deadline = monotonic() + wait_s
    variant = _asked(deployment, batching, actor=actor, deadline=deadline, beat=beat)
    try:
        with _kept(variant, actor=actor, deadline=deadline, wait_s=wait_s, beat=beat) as found:
            yield found
    except Exception:
        _see_off(variant, beat)
        raise
    _see_off(variant, beat)


@contextmanager
def _kept(
    variant: Variant, *, actor: Actor, deadline: float, wait_s: float, beat: Callable[[], None]
) -> Iterator[tuple[InferenceServer, Callable[[], None]]]:
    """Its server, and what keeps it; given up afterwards, however that is. Raises NotServed."""
    try:
        keep = _keeping(variant, actor)
        while variant.ready_at is None:
            if monotonic() > deadline:
                raise NotServed(f"it was not ready within {wait_s:.0f} s")
            beat()
            keep()
            sleep(_POLL_S)
            variant.refresh_from_db()
            if variant.ended_at is not None:
                raise NotServed(variant.end_reason)
        client = inference_server(variant)
        try:
            yield client, keep
        finally:
            client.close()
    finally:
        prolong_variant(actor=actor, variant=variant, for_s=0)


def _asked(
    deployment: Deployment, batching: Batching, *, actor: Actor, deadline: float, beat: Callable[[], None]
) -> Variant:
    """Once an earlier one is gone, which a worker that died may have left. Raises NotServed."""
    while True:
        variant = ask_variant(actor=actor, deployment=deployment, batching=batching, for_s=_TERM_S)
        if variant is not None:
            return variant
        if monotonic() > deadline:
            raise NotServed("the server before it is not gone")
        beat()
        sleep(_POLL_S)


def _keeping(variant: Variant, actor: Actor) -> Callable[[], None]:
    prolonged_at = monotonic()

    def keep() -> None:
        nonlocal prolonged_at
        if monotonic() - prolonged_at < _PROLONG_EVERY_S:
            return
        if not prolong_variant(actor=actor, variant=variant, for_s=_TERM_S):
            variant.refresh_from_db()
            raise NotServed(variant.end_reason or "it was given up, because nobody kept it")
        prolonged_at = monotonic()

    return keep


def _see_off(variant: Variant, beat: Callable[[], None]) -> None:
    """What comes next is not to share the machine with it, also where the time to try it is over."""
    deadline = monotonic() + _GONE_WITHIN_S
    while variant.ended_at is None and monotonic() < deadline:
        with suppress(NotServed):
            beat()
        sleep(_POLL_S)
        variant.refresh_from_db()
