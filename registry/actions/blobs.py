"""Blob rows and the bytes behind them, kept in step.

A row is written only while its bytes are there, and bytes are removed only while no row names them: both under one
advisory lock per sha256, so that storing and forgetting the same bytes at once cannot leave one without the other.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from django.db import connection, transaction
from django.db.models import ProtectedError

from accounts.core.errors import StateChanged
from registry.models import Blob
from registry.storage import store


def put_blob(data: bytes) -> Blob:
    """The blob of these bytes, stored if it was not."""
    sha256, size = store().put_stream(io.BytesIO(data))
    with transaction.atomic():
        return record_blob(sha256, size)


def record_blob(sha256: str, size_bytes: int) -> Blob:
    """The row for bytes that were stored just now, inside a transaction. Raises StateChanged when they are gone."""
    hold_blob(sha256)
    if not store().exists(sha256):
        raise StateChanged(
            "blob_gone", "The bytes were removed while they were being recorded. Upload the file again.", sha256=sha256
        )
    blob = Blob.objects.get_or_create(sha256=sha256, defaults={"size_bytes": size_bytes, "store_key": sha256})[0]
    if blob.collected_at is not None:  # what was deleted is there once more
        Blob.objects.filter(pk=sha256).update(collected_at=None)
    return blob


def forget_unused(sha256s: Iterable[str]) -> None:
    """Removes those of the blobs that nothing refers to, row and bytes."""
    for sha256 in sorted(set(sha256s)):
        with transaction.atomic():
            hold_blob(sha256)
            try:
                Blob.objects.filter(sha256=sha256).delete()
            except ProtectedError:
                continue
            # Before the commit, while the lock is held. Should that fail, the next upload heals the row without bytes.
            store().delete(sha256)


def hold_blob(sha256: str) -> None:
    """Until the transaction ends, nobody else stores or removes these bytes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"blob:{sha256}"])
