"""An upload's bytes in the store, and their cleanup."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from ledger.actions.transitions import reread, transition
from ledger.core.errors import StateChanged
from registry.actions.blobs import delete_if_unreferenced
from registry.core.uploads import MOVES, UploadState
from registry.models import Release, Upload
from registry.storage import Place, store

UNDER_WAY = (UploadState.OPEN, UploadState.VERIFYING)


def move_upload(upload: Upload, to: UploadState, **columns: Any) -> bool:
    """Whether the upload made this move of the table now; False when it cannot, or another made one first."""
    try:
        transition(upload, to, moves=MOVES, **columns)
    except StateChanged:
        reread(upload)
        return False
    return True


def call_off_uploads(release: Release) -> None:
    """Aborts the uploads of a draft that is about to be deleted; the store is cleared after the commit."""
    for upload in release.uploads.filter(state__in=UNDER_WAY):
        if move_upload(upload, UploadState.ABORTED):
            clear_later(upload)


def dismiss_quarantined(release: Release, path: str) -> None:
    """Aborts the path's quarantined uploads, once the right file is there."""
    for upload in release.uploads.filter(path=path, state=UploadState.QUARANTINED):
        if move_upload(upload, UploadState.ABORTED):
            clear_later(upload)


def clear_later(upload: Upload) -> None:
    """Deletes after the commit. What fails then is retried by the sweep, since the row still says that bytes are stored."""
    transaction.on_commit(lambda: clear(upload), robust=True)


def clear(upload: Upload) -> None:
    """Deletes what the store has of this upload, except bytes that became a blob's."""
    # Without the store's own name for it, so that one begun by a process that died before it said so goes as well.
    store().keys.abort(Place(upload.store_key, upload.size_bytes, upload.part_size))
    delete_if_unreferenced(upload.sha256, upload.store_key)
    Upload.objects.filter(pk=upload.pk).update(is_stored=False)
