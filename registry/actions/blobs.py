"""Blob rows and the bytes behind them, kept in step.

A row is written only while its bytes are there, and bytes are removed only while no row names them: both under an
advisory lock of the sha256, so that storing and forgetting the same bytes at once cannot leave one without the other.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection, transaction
from django.db.models import ProtectedError

from ledger.actions.transitions import transition
from ledger.core.errors import StateChanged
from registry.core.blob_lifecycle import MOVES, BlobState
from registry.models import Blob
from registry.storage import store

#: The class id of the blobs' advisory locks; no other advisory lock uses this number.
_BLOB_LOCKS = 0x626C6F62


def put_blob(data: bytes) -> Blob:
    """The blob of these bytes, stored if it was not."""
    sha256, size = store().put_stream(io.BytesIO(data))
    with transaction.atomic():
        return record_blob(sha256, size)


def record_blob(
    sha256: str, size_bytes: int, *, key: str = "", part_size: int | None = None, part_sha256: Sequence[str] = ()
) -> Blob:
    """The row for bytes that were stored and found right just now, under `key`, inside a transaction.

    Of several who store the same bytes the first wins, and the others' are removed after the commit. A row whose bytes
    were lost, collected or found wrong is healed by the new ones. Raises StateChanged when the bytes are gone.
    """
    lock_blob(sha256)
    key, keys = key or sha256, store().keys
    blob = Blob.objects.filter(sha256=sha256).first()
    if blob is not None and blob.state == BlobState.VERIFIED and (blob.store_key == key or keys.exists(blob.store_key)):
        if blob.store_key != key:
            transaction.on_commit(lambda: delete_if_unreferenced(sha256, key), robust=True)
        elif not keys.exists(key):
            _gone(sha256)
        if blob.collected_at is not None:  # the same key again: what was deleted is there once more
            Blob.objects.filter(pk=sha256).update(collected_at=None)
        return blob
    if not keys.exists(key):
        _gone(sha256)
    if blob is not None and blob.state == BlobState.QUARANTINED and blob.store_key == key:
        raise StateChanged(
            "blob_quarantined",
            f"The store's bytes for {sha256} are damaged: {blob.problem} Upload the file in parts, which stores it anew.",
            sha256=sha256,
        )
    columns: dict[str, Any] = {"store_key": key, "part_size": part_size, "part_sha256": list(part_sha256)}
    if blob is None:
        return Blob.objects.create(sha256=sha256, size_bytes=size_bytes, **columns)
    lost = blob.store_key
    transition(blob, BlobState.VERIFIED, moves=MOVES, may_stay=True, problem="", collected_at=None, **columns)
    if lost != key:
        transaction.on_commit(lambda: delete_if_unreferenced(sha256, lost), robust=True)
    return blob


def _gone(sha256: str) -> None:
    raise StateChanged(
        "blob_gone", "The bytes were removed while they were being recorded. Upload the file again.", sha256=sha256
    )


def delete_if_unreferenced(sha256: str, key: str) -> None:
    """Removes bytes that lost the race for their sha256: no row names their key. Does nothing where one does."""
    with transaction.atomic():
        lock_blob(sha256)
        if not Blob.objects.filter(sha256=sha256, store_key=key).exists():
            store().keys.delete(key)


def forget_unused(sha256s: Iterable[str]) -> None:
    """Removes those of the blobs that nothing refers to, row and bytes."""
    for sha256 in sorted(set(sha256s)):
        with transaction.atomic():
            lock_blob(sha256)
            # Bytes that came whole and found no row lie under their sha256 itself.
            keys = {sha256} | keys_in_use(sha256)
            try:
                with transaction.atomic():
                    Blob.objects.filter(sha256=sha256).delete()
            except ProtectedError:
                keys = {sha256} - keys_in_use(sha256)
            # Before the commit, while the lock is held. Should that fail, the next upload heals the row without bytes.
            for key in keys:
                store().keys.delete(key)


def keys_in_use(sha256: str) -> set[str]:
    """The key of the blob's row, if there is one."""
    return set(Blob.objects.filter(sha256=sha256).values_list("store_key", flat=True))


def lock_blob(sha256: str) -> None:
    """An advisory lock until the transaction ends: no other transaction stores or removes these bytes."""
    lock_blobs([sha256])


def lock_blobs(sha256s: Iterable[str]) -> None:
    """As `lock_blob` for several, taken in sorted order so that two transactions cannot deadlock.

    Blobs share 1,024 locks: a draft may take over 10,000 files, and PostgreSQL has room for 6,400 locks of all sessions.
    """
    with connection.cursor() as cursor:
        for lock in sorted({int(sha256[:3], 16) // 4 for sha256 in sha256s}):
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_BLOB_LOCKS, lock])
