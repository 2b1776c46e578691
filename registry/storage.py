"""Where blobs lie: bytes known by their sha256, written once and never changed.

`BlobStore` is the port; `FolderStore` keeps the bytes in a folder. Every store passes
tests/contracts/test_blob_store.py.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from accounts.core.errors import Invalid, NotFound, Unavailable

CHUNK_BYTES = 1 << 20


class Readable(Protocol):
    """Anything that gives up to `size` bytes at a time, and b"" at its end."""

    def read(self, size: int, /) -> bytes: ...


class BlobStore(Protocol):
    """Bytes by their sha256 (64 hex digits)."""

    def put_stream(self, stream: Readable, expected_sha256: str | None = None) -> tuple[str, int]:
        """(sha256, size in bytes) of what was stored; storing the same bytes again changes nothing.

        Raises Invalid("digest_mismatch") or Invalid("too_large"), with nothing left behind, and Unavailable when the
        store cannot take bytes now.
        """
        ...

    def open(self, sha256: str) -> BinaryIO:
        """Raises NotFound."""
        ...

    def exists(self, sha256: str) -> bool: ...

    def size(self, sha256: str) -> int:
        """In bytes. Raises NotFound."""
        ...

    def path(self, sha256: str) -> Path:
        """A local file with these bytes, not to be written. Raises NotFound."""
        ...

    def delete(self, sha256: str) -> None:
        """Forgets the bytes; no error when they are not there. Only for blobs that no row names."""
        ...


def store() -> BlobStore:
    """The store that SLUICEGATE_BLOB_STORE names."""
    place = settings.BLOB_STORE
    if "://" in place:
        raise ImproperlyConfigured(
            f"SLUICEGATE_BLOB_STORE={place!r}: only a folder can be a blob store in this version; write its path."
        )
    return FolderStore(Path(place), max_bytes=settings.MAX_UPLOAD_BYTES)


def chunks_of(stream: Readable) -> Iterator[bytes]:
    """The stream in pieces of at most 1 MiB."""
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


class FolderStore:
    """Blobs in a folder, as `ab/cd/<sha256>`, read-only.

    Bytes are hashed while they are written to a file beside, synced, and then linked to their name: a name appears
    only with all of its bytes, and of two writers one wins without harm.
    """

    def __init__(self, root: Path, *, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes

    def put_stream(self, stream: Readable, expected_sha256: str | None = None) -> tuple[str, int]:
        try:
            return self._put(stream, expected_sha256)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Unavailable(
                    "store_full", "The blob store is full. Free space or enlarge it, then upload again."
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise Unavailable(
                    "store_unwritable",
                    "The blob store cannot be written. Check its folder's owner and mount, then upload again.",
                ) from error
            raise

    def _put(self, stream: Readable, expected_sha256: str | None) -> tuple[str, int]:
        incoming = self.root / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=incoming)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                sha256, size = self._copy(stream, file)
                if expected_sha256 is not None and sha256 != expected_sha256:
                    raise Invalid(
                        "digest_mismatch",
                        f"The bytes that arrived have sha256 {sha256}, and {expected_sha256} was announced. "
                        "Compute the sha256 of the file that is sent, or send the file again.",
                        expected=expected_sha256,
                        actual=sha256,
                    )
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o444)
            self._link(temporary, sha256)
        finally:
            temporary.unlink(missing_ok=True)
        return sha256, size

    def _copy(self, stream: Readable, file: BinaryIO) -> tuple[str, int]:
        digest, size = hashlib.sha256(), 0
        for chunk in chunks_of(stream):
            size += len(chunk)
            if size > self.max_bytes:
                raise Invalid(
                    "too_large",
                    f"The file is larger than {self.max_bytes} bytes, the most that this installation takes. "
                    "Send a smaller file, or ask for a higher SLUICEGATE_MAX_UPLOAD_BYTES.",
                    max_bytes=self.max_bytes,
                )
            digest.update(chunk)
            file.write(chunk)
        return digest.hexdigest(), size

    def _link(self, temporary: Path, sha256: str) -> None:
        final = self._name(sha256)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(temporary, final)
        except FileExistsError:
            return  # the same bytes, stored before
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name must survive a power cut as the bytes do
        finally:
            os.close(folder)

    def open(self, sha256: str) -> BinaryIO:
        return self.path(sha256).open("rb")

    def exists(self, sha256: str) -> bool:
        return self._name(sha256).is_file()

    def size(self, sha256: str) -> int:
        return self.path(sha256).stat().st_size

    def path(self, sha256: str) -> Path:
        name = self._name(sha256)
        if not name.is_file():
            raise NotFound(
                "no_such_blob",
                f"The blob store has no bytes with sha256 {sha256}. Upload the file again.",
                sha256=sha256,
            )
        return name

    def delete(self, sha256: str) -> None:
        self._name(sha256).unlink(missing_ok=True)

    def _name(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise Invalid("not_a_sha256", f"{sha256!r} is not a sha256. Write 64 hex digits in lower case.")
        return self.root / sha256[:2] / sha256[2:4] / sha256
