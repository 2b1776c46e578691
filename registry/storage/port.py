"""What every blob store does. tests/contracts/test_blob_store*.py hold each adapter to it.

A store keeps bytes under a key that is written once: `<sha256>` for bytes that came through this process and were hashed
on their way, `<sha256>/<upload, 32 hex digits>` for bytes that came in parts. Which key holds a blob is the database's to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from ledger.core.errors import Invalid, NotFound
from registry.core.uploads import PartPlan

CHUNK_BYTES = 1 << 20
_SHA256, _UPLOAD = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{32}")


class Readable(Protocol):
    """Anything that gives up to `size` bytes at a time, and b"" at its end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Place:
    """Where an upload's bytes go. `store_id` is the store's own name for it, empty where it needs none."""

    key: str
    size_bytes: int
    part_size: int
    store_id: str = ""

    @property
    def plan(self) -> PartPlan:
        return PartPlan(self.size_bytes, self.part_size)

    @property
    def sha256(self) -> str:
        return self.key.partition("/")[0]

    @property
    def upload(self) -> str:
        return self.key.partition("/")[2]


@dataclass(frozen=True)
class ReceivedPart:
    """A part that the store has. `sha256` is None where the store does not return it; `etag` is the store's own mark."""

    number: int
    size_bytes: int
    sha256: str | None = None
    etag: str = ""


@dataclass(frozen=True)
class SignedPart:
    """Where one part is to be PUT, and the headers that must come with it. `url` may be a path of this installation."""

    number: int
    url: str
    headers: dict[str, str] = field(default_factory=dict)


class BlobStore(Protocol):
    """Bytes under keys. Every method raises Unavailable when the store does not answer, and Invalid for what is no key."""

    def put_stream(self, stream: Readable, expected_sha256: str | None = None) -> tuple[str, int]:
        """(sha256, size in bytes) of what was stored under its sha256; the same bytes again change nothing.

        Raises Invalid("digest_mismatch") or Invalid("too_large"), with nothing left behind.
        """
        ...

    def open(self, key: str) -> BinaryIO:
        """A file that can be read and sought. Raises NotFound."""
        ...

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the end. Raises NotFound."""
        ...

    def chunks(self, key: str) -> Iterator[memoryview]:
        """Everything under the key, in order, as fast as it can be had; what is next is fetched while one is used.

        A chunk is good until the next one is asked for. Raises NotFound.
        """
        ...

    def exists(self, key: str) -> bool: ...

    def size(self, key: str) -> int:
        """In bytes. Raises NotFound."""
        ...

    def path(self, key: str) -> Path:
        """A local file with these bytes, not to be written; a store elsewhere makes a checked copy. Raises NotFound."""
        ...

    def delete(self, key: str) -> None:
        """Forgets the bytes; no error when they are not there. Only for keys that no blob names."""
        ...

    def keys(self) -> Iterator[tuple[str, int]]:
        """(key, size in bytes) of everything that is stored whole."""
        ...

    def begin(self, key: str, size_bytes: int, part_size: int) -> Place:
        """A new upload in parts to a key that was never used."""
        ...

    def sign_part(self, place: Place, number: int, sha256: str, expires_in_s: int) -> SignedPart:
        """A presigned address that accepts only bytes with this sha256 as that part, until it expires."""
        ...

    def received_parts(self, place: Place) -> dict[int, ReceivedPart]:
        """The parts that arrived whole, by number; once they became the bytes under the key, all of them."""
        ...

    def complete(self, place: Place, part_sha256s: Sequence[str]) -> bool:
        """The parts become the bytes under the key; completing again changes nothing.

        True when the store itself hashed the whole on its way in and found `place.sha256`; False leaves that to a reader.
        Raises Invalid("part_missing" | "part_mismatch") naming the parts, NotFound("upload_gone").
        """
        ...

    def abort(self, place: Place) -> None:
        """Forgets the parts: of this beginning, or, without its `store_id`, of everything that was begun under the key.

        No error when there are none. Bytes that were completed stay.
        """
        ...

    def unfinished(self) -> Iterator[Place]:
        """Uploads whose parts lie in the store, with what the store knows: key and store_id; sizes are 0."""
        ...


def all_parts(place: Place) -> dict[int, ReceivedPart]:
    """Every part, as of an upload that the store has completed."""
    return {part.number: ReceivedPart(part.number, part.size_bytes) for part in place.plan.parts()}


def split_key(key: str) -> tuple[str, str]:
    """(sha256, upload or ""). Raises Invalid for what is no key."""
    sha256, slash, upload = key.partition("/")
    if not _SHA256.fullmatch(sha256) or (slash and not _UPLOAD.fullmatch(upload)):
        raise Invalid(
            "not_a_sha256", f"{key!r} is not a sha256, nor the key of an upload. Write 64 hex digits in lower case."
        )
    return sha256, upload


def chunks_of(stream: Readable) -> Iterator[bytes]:
    """The stream in pieces of at most 1 MiB."""
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def no_such_blob(key: str) -> NotFound:
    sha256 = key.partition("/")[0]
    return NotFound(
        "no_such_blob", f"The blob store has no bytes with sha256 {sha256}. Upload the file again.", sha256=sha256
    )


def too_large(max_bytes: int) -> Invalid:
    return Invalid(
        "too_large",
        f"The file is larger than {max_bytes} bytes, the most that this installation takes. "
        "Send a smaller file, or ask for a higher SLUICEGATE_MAX_UPLOAD_BYTES.",
        max_bytes=max_bytes,
    )


def digest_mismatch(expected: str, actual: str) -> Invalid:
    return Invalid(
        "digest_mismatch",
        f"The bytes that arrived have sha256 {actual}, and {expected} was announced. "
        "Compute the sha256 of the file that is sent, or send the file again.",
        expected=expected,
        actual=actual,
    )


def upload_gone(place: Place) -> NotFound:
    return NotFound(
        "upload_gone",
        "The store has no such upload any more; it was aborted or ran out. Start a new one.",
        upload=place.upload,
    )


def check_parts(place: Place, held: dict[int, ReceivedPart], part_sha256s: Sequence[str]) -> None:
    """Raises Invalid unless every part is there, with its size and, where the store returns it, its sha256."""
    missing = [part.number for part in place.plan.parts() if part.number not in held]
    if missing:
        raise Invalid(
            "part_missing",
            f"{len(missing)} of {place.plan.count} parts were not sent: {_first(missing)}. "
            "Sign and send them, then complete again.",
            missing=missing,
        )
    wrong = [
        part.number
        for part, sha256 in zip(place.plan.parts(), part_sha256s, strict=True)
        if held[part.number].size_bytes != part.size_bytes or held[part.number].sha256 not in (None, sha256)
    ]
    if wrong:
        raise Invalid(
            "part_mismatch",
            f"Parts {_first(wrong)} are not the ones that were signed last. Sign and send them again.",
            wrong=wrong,
        )


def _first(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return shown if len(numbers) <= 10 else f"{shown}, …"
