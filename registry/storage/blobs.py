"""Blobs by their sha256, wherever they lie: the blob's row says under which key the store has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from django.conf import settings

from ledger.core.errors import NotFound
from registry.storage.folder import FolderStore
from registry.storage.port import BlobStore, Readable, split_key

if TYPE_CHECKING:
    from registry.storage.s3 import S3Store

#: Concurrent HEAD requests while looking for missing keys.
_ASKERS = 16


def adapter() -> BlobStore:
    """The store that SLUICEGATE_BLOB_STORE names, by keys."""
    place = settings.BLOB_STORE
    if place.startswith("s3://"):
        return _s3(
            place,
            settings.S3_ENDPOINT,
            settings.S3_PUBLIC_ENDPOINT,
            settings.S3_REGION,
            settings.S3_ACCESS_KEY,
            settings.S3_SECRET_KEY,
            settings.MAX_UPLOAD_BYTES,
            settings.STATE_DIR / "blob-copies",
        )
    return FolderStore(Path(place), max_bytes=settings.MAX_UPLOAD_BYTES)


@lru_cache(maxsize=4)  # a client takes 50 ms to make and may be shared by threads
def _s3(
    place: str, endpoint: str, public: str, region: str, access: str, secret: str, max_bytes: int, copies: Path
) -> S3Store:
    # boto3 is a quarter of what a process imports, and most need none.
    from registry.storage.s3 import S3Store, bucket_of

    bucket, prefix = bucket_of(place)
    return S3Store(
        bucket, prefix=prefix, endpoint=endpoint, public_endpoint=public, region=region, access_key=access,
        secret_key=secret, max_bytes=max_bytes, copies=copies,
    )  # fmt: skip


def store() -> Blobs:
    """Every blob of this installation, by sha256."""
    return Blobs(adapter())


class Blobs:
    """Reads blobs by sha256 (64 hex digits). Bytes that no row names are looked for as those that came whole."""

    def __init__(self, keys: BlobStore) -> None:
        self.keys = keys

    def key_of(self, sha256: str) -> str:
        """The key that holds the blob. Raises Invalid for what is no sha256."""
        from registry.models import Blob  # storage is beside the models, and only this asks them

        split_key(sha256)
        return Blob.objects.filter(pk=sha256).values_list("store_key", flat=True).first() or sha256

    def put_stream(self, stream: Readable, expected_sha256: str | None = None) -> tuple[str, int]:
        return self.keys.put_stream(stream, expected_sha256)

    def open(self, sha256: str) -> BinaryIO:
        return self.keys.open(self.key_of(sha256))

    def read_range(self, sha256: str, start: int, length: int) -> bytes:
        return self.keys.read_range(self.key_of(sha256), start, length)

    def reader_of(self, sha256: str) -> Callable[[int, int], bytes]:
        """Reads `(start, length)` of the blob. Its key is looked up now, so that threads that read ask no database."""
        return partial(self.keys.read_range, self.key_of(sha256))

    def exists(self, sha256: str) -> bool:
        return self.keys.exists(self.key_of(sha256))

    def size(self, sha256: str) -> int:
        return self.keys.size(self.key_of(sha256))

    def path(self, sha256: str) -> Path:
        return self.keys.path(self.key_of(sha256))

    def delete(self, sha256: str) -> None:
        self.keys.delete(self.key_of(sha256))

    def missing_keys(self, wanted: Iterable[tuple[str, int]]) -> set[str]:
        """Those of the (key, size in bytes) that the store does not have with that size."""

        def is_stored(one: tuple[str, int]) -> bool:
            try:
                return self.keys.size(one[0]) == one[1]
            except NotFound:
                return False

        asked = list(dict.fromkeys(wanted))
        if isinstance(self.keys, FolderStore):
            return {one[0] for one in asked if not is_stored(one)}
        with ThreadPoolExecutor(_ASKERS) as pool:
            return {one[0] for one, is_there in zip(asked, pool.map(is_stored, asked), strict=True) if not is_there}
