"""Stored bytes read again: whether each blob is still what its sha256 says."""

from __future__ import annotations

import hashlib

from django.db import transaction

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from ledger.actions.transitions import transition
from ledger.core.errors import NotFound, StateChanged
from registry.actions.blobs import lock_blob
from registry.core.blob_lifecycle import MOVES, BlobState
from registry.models import Blob
from registry.storage import store


def recheck_blob(*, actor: Actor, blob: Blob) -> str:
    """What is wrong with the blob's stored bytes; empty when they are as they were.

    Damaged ones are quarantined: no draft takes them over and no draft with them is sealed, until the right bytes are
    uploaded again in parts, or restored and rechecked. Reads all of it. For administrators and the system.
    """
    require(actor, Verb.ADMINISTER, "")
    problem = _damage(blob)
    to = BlobState.QUARANTINED if problem else BlobState.VERIFIED
    with transaction.atomic():
        lock_blob(blob.sha256)
        if blob.state != to and _is_moved(blob, to, problem) and problem:
            append_event(
                verb="blob.quarantined",
                subject_type="blob",
                subject_id=blob.sha256,
                actor=actor,
                reason=problem,
                facts={"store_key": blob.store_key},
            )
    return problem


def _damage(blob: Blob) -> str:
    digest, fix = hashlib.sha256(), "Restore them from a copy and check again, or upload the file again in parts."
    try:
        for chunk in store().keys.chunks(blob.store_key):
            digest.update(chunk)
    except NotFound:
        return f"The store has no bytes for {blob.sha256} any more. {fix}"
    if digest.hexdigest() == blob.sha256:
        return ""
    return f"The stored bytes have sha256 {digest.hexdigest()}, not {blob.sha256} as they had when they were verified. {fix}"


def _is_moved(blob: Blob, to: BlobState, problem: str) -> bool:
    """From the state and the bytes that were seen: an upload may have healed the blob meanwhile."""
    seen = {"store_key": blob.store_key, "collected_at": None}
    try:
        transition(blob, to, moves=MOVES, where=seen, problem=problem)
    except StateChanged:
        return False
    return True
