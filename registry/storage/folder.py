"""Blobs in a folder, read-only: `ab/cd/<sha256>` and `ab/cd/<sha256>.<upload>`.

What comes whole is hashed while it is written to a file beside, synced, and then linked to its name: a name appears
only with all of its bytes, and of two writers one wins without harm. What comes in parts is written at its place in one
file, each part by one writer at a time, and counts once a marker beside it holds the part's sha256; completing moves
that file to its name, and copies nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlencode

from django.conf import settings

from ledger.core.errors import DomainError, Invalid, NotFound, Unavailable
from registry.core.uploads import PartTicket, part_address
from registry.storage.port import (
    Place,
    Readable,
    ReceivedPart,
    SignedPart,
    all_parts,
    check_parts,
    chunks_of,
    digest_mismatch,
    no_such_blob,
    split_key,
    too_large,
    upload_gone,
)

#: In `incoming/<upload>/`: the bytes, the sha256 that they are to have, and a marker `<number>.part` for each part.
_BYTES, _OF = "bytes", "of"


class FolderStore:
    """A folder that every process of the installation sees."""

    def __init__(self, root: Path, *, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes

    def put_stream(self, stream: Readable, expected_sha256: str | None = None) -> tuple[str, int]:
        with _writing():
            return self._put(stream, expected_sha256)

    def _put(self, stream: Readable, expected_sha256: str | None) -> tuple[str, int]:
        incoming = self.root / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=incoming)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                sha256, size = self._copy(stream, file)
                if expected_sha256 is not None and sha256 != expected_sha256:
                    raise digest_mismatch(expected_sha256, sha256)
                file.flush()
                _settle(file.fileno())
            self._link(temporary, sha256)
        finally:
            temporary.unlink(missing_ok=True)
        return sha256, size

    def _copy(self, stream: Readable, file: BinaryIO) -> tuple[str, int]:
        digest, size = hashlib.sha256(), 0
        for chunk in chunks_of(stream):
            size += len(chunk)
            if size > self.max_bytes:
                raise too_large(self.max_bytes)
            digest.update(chunk)
            file.write(chunk)
        return digest.hexdigest(), size

    def _link(self, temporary: Path, key: str) -> None:
        final = self._name(key)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(temporary, final)
        except FileExistsError:
            return  # the same bytes, stored before
        _sync_folder(final.parent)

    def open(self, key: str) -> BinaryIO:
        return self.path(key).open("rb")

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with self.open(key) as file:
            return os.pread(file.fileno(), length, start)

    def chunks(self, key: str) -> Iterator[memoryview]:
        buffer = bytearray(1 << 20)
        with self.path(key).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                yield memoryview(buffer)[:count]

    def exists(self, key: str) -> bool:
        return self._name(key).is_file()

    def size(self, key: str) -> int:
        return self.path(key).stat().st_size

    def path(self, key: str) -> Path:
        name = self._name(key)
        if not name.is_file():
            raise no_such_blob(key)
        return name

    def delete(self, key: str) -> None:
        self._name(key).unlink(missing_ok=True)

    def keys(self) -> Iterator[tuple[str, int]]:
        for outer in _entries(self.root):
            for inner in _entries(outer.path) if len(outer.name) == 2 else ():
                for entry in _entries(inner.path):
                    with suppress(FileNotFoundError, Invalid):  # deleted meanwhile, or not ours
                        key = entry.name.replace(".", "/", 1)
                        split_key(key)
                        yield key, entry.stat().st_size

    def begin(self, key: str, size_bytes: int, part_size: int) -> Place:
        place = Place(key, size_bytes, part_size)
        folder = self._parts(place)
        with _writing():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _OF).write_text(place.sha256)
            with (folder / _BYTES).open("ab") as file:
                file.truncate(size_bytes)
        return place

    def sign_part(self, place: Place, number: int, sha256: str, expires_in_s: int) -> SignedPart:
        part = place.plan.part(number)
        ticket = PartTicket(place.upload, number, part.offset, part.size_bytes, sha256, int(time.time()) + expires_in_s)
        said = {
            "offset": part.offset,
            "size": part.size_bytes,
            "sha256": sha256,
            "expires": ticket.expires_at_s,
            "signature": ticket.signature(settings.SECRET_KEY.encode()),
        }
        return SignedPart(number, f"{part_address(place.upload, number)}?{urlencode(said)}")

    def received_parts(self, place: Place) -> dict[int, ReceivedPart]:
        try:
            return self._marked_parts(place)
        except NotFound:
            return all_parts(place) if self.exists(place.key) else {}

    def _marked_parts(self, place: Place) -> dict[int, ReceivedPart]:
        """The parts that lie in `incoming/`. Raises NotFound("upload_gone"), also where another completes or aborts meanwhile."""
        folder, held = self._parts(place), {}
        if not (folder / _BYTES).is_file():
            raise upload_gone(place)
        try:
            markers = [folder / name for name in os.listdir(folder) if name.endswith(".part")]
        except FileNotFoundError:
            raise upload_gone(place) from None
        for marker in markers:
            if sha256 := _read_marker(marker):
                number = int(marker.stem)
                held[number] = ReceivedPart(number, place.plan.part(number).size_bytes, sha256)
        return held

    def complete(self, place: Place, part_sha256s: Sequence[str]) -> bool:
        folder, is_checked_now = self._parts(place), False
        try:
            check_parts(place, self._marked_parts(place), part_sha256s)
            is_checked_now = True
            self._move_in(folder / _BYTES, place)
        except DomainError:
            if not self.exists(place.key):  # else it was completed before, or is by another just now
                raise
        shutil.rmtree(folder, ignore_errors=True)
        # One part was hashed whole by `PartWriter`, and its marker has just said with which sha256.
        return is_checked_now and place.plan.count == 1 and list(part_sha256s) == [place.sha256]

    def _move_in(self, file: Path, place: Place) -> None:
        with _writing(), suppress(FileNotFoundError):  # another completed it meanwhile
            with file.open("rb") as written:
                _settle(written.fileno())
            self._link(file, place.key)

    def abort(self, place: Place) -> None:
        shutil.rmtree(self._parts(place), ignore_errors=True)

    def unfinished(self) -> Iterator[Place]:
        for folder in self.root.glob("incoming/*/"):
            of = folder / _OF
            yield Place(f"{of.read_text() if of.is_file() else '0' * 64}/{folder.name}", 0, 1)

    def part_writer(self, ticket: PartTicket) -> PartWriter:
        """Takes the bytes of one part. Raises NotFound("upload_gone") and Unavailable while another writes the part."""
        return PartWriter(self.root / "incoming" / ticket.upload, ticket)

    def _parts(self, place: Place) -> Path:
        split_key(place.key)
        return self.root / "incoming" / place.upload

    def _name(self, key: str) -> Path:
        sha256, upload = split_key(key)
        return self.root / sha256[:2] / sha256[2:4] / (f"{sha256}.{upload}" if upload else sha256)


class PartWriter:
    """Writes one part to the disk: `write` its bytes, then `finish`; always `close`.

    A part that is there already takes no bytes: `is_received` says so.
    """

    def __init__(self, folder: Path, ticket: PartTicket) -> None:
        self.ticket, self._folder = ticket, folder
        self._digest, self._size = hashlib.sha256(), 0
        self._file = -1
        try:
            self._marker = os.open(folder / f"{ticket.number}.part", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            raise _part_of_nothing() from None
        try:
            fcntl.flock(self._marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise Unavailable(
                "part_busy", "Another connection is sending this part now. Wait a moment, then send it again."
            ) from None
        held = _read_marker(folder / f"{ticket.number}.part")
        if held and held != ticket.sha256:
            self.close()
            raise Invalid(
                "part_mismatch",
                f"Part {ticket.number} is there with the sha256 {held}. Start a new upload for a file that has changed.",
            )
        self.is_received = bool(held)

    def write(self, data: bytes) -> None:
        """Raises Invalid("too_large") for more bytes than the part has, Unavailable when the disk is full."""
        if self._size + len(data) > self.ticket.size_bytes:
            raise Invalid(
                "too_large",
                f"Part {self.ticket.number} has {self.ticket.size_bytes} bytes, and more arrived. Send just the part.",
            )
        with _writing():
            if self._file < 0:
                self._file = self._open()
            view, at = memoryview(data), self.ticket.offset + self._size
            while view:
                written = os.pwrite(self._file, view, at)
                view, at = view[written:], at + written
        self._digest.update(data)
        self._size += len(data)

    def _open(self) -> int:
        try:
            return os.open(self._folder / _BYTES, os.O_WRONLY)
        except FileNotFoundError:
            raise _part_of_nothing() from None

    def finish(self) -> None:
        """The part counts from now on. Raises Invalid unless it has the size and the sha256 that were signed."""
        if self.is_received:
            return
        if self._size != self.ticket.size_bytes:
            raise Invalid(
                "upload_cut_short",
                f"Part {self.ticket.number} has {self.ticket.size_bytes} bytes, and {self._size} arrived. Send it again.",
            )
        if self._digest.hexdigest() != self.ticket.sha256:
            raise digest_mismatch(self.ticket.sha256, self._digest.hexdigest())
        with _writing():
            if self._file >= 0:
                os.fdatasync(self._file)
            os.pwrite(self._marker, self.ticket.sha256.encode(), 0)
            os.fsync(self._marker)

    def close(self) -> None:
        for handle in (self._file, self._marker):
            if handle >= 0:
                os.close(handle)
        self._file = self._marker = -1


def _part_of_nothing() -> NotFound:
    return NotFound(
        "upload_gone", "There is no such open upload; it was completed, aborted or ran out. Look at it again."
    )


def _read_marker(path: Path) -> str:
    """The sha256 of a part that was written whole; empty for one that was not."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ""
    return text if len(text) == 64 else ""


def _settle(handle: int) -> None:
    os.fsync(handle)
    os.fchmod(handle, 0o400)


def _sync_folder(path: Path) -> None:
    """The names in it survive a power cut as their bytes do."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in the folder; nothing where it is none, or is gone. Three times as fast as a glob."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
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
