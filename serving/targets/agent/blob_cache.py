"""A node's own copies of blobs: fetched once in parallel ranges, checked while they are written, kept while there is room.

<folder>/ab/<sha256>     a whole copy, read-only; a server's files are hard links to it, so a release takes its room once
<folder>/incoming/…      one that is being written; its name appears only with all of its bytes
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)
#: Range size, and parallel ranges of a fetch: memory is at most their product.
#: Source: several flows to one S3 server are three to four times as fast as one (mlflow PR 9498), best at 16 MiB.
RANGE_BYTES, AT_ONCE = 16 * 2**20, 4
_CHUNK_BYTES = 1 << 20

Read = Callable[[int, int], bytes]  # (start, length), fewer bytes at the end


class BlobReader(Protocol):
    """Where bytes are found by their sha256 (64 hex digits)."""

    def reader_of(self, sha256: str) -> Read:
        """May be called by several threads at once. Raises the store's error for bytes that it does not have."""
        ...


class DamagedBlob(Exception):
    """What the store gave is not what was asked for. `actual` is its sha256."""

    def __init__(self, actual: str) -> None:
        super().__init__(f"the bytes have the sha256 {actual}")
        self.actual = actual


class BlobCache:
    """One node's copies. `max_bytes`: over it, the least recently used copies that no server uses are evicted.

    Several threads and processes may use one folder. A copy is hashed again before every use, so that a damaged one is
    fetched anew and never served. `moved_bytes` counts what was fetched.
    """

    def __init__(self, folder: Path, blobs: BlobReader, *, max_bytes: int = 2**63) -> None:
        self.folder, self._blobs, self.max_bytes = folder, blobs, max_bytes
        self.moved_bytes = 0
        self._making_room = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def place(self, sha256: str, size_bytes: int, target: Path) -> None:
        """The blob as a read-only file at `target`, which must not exist. Raises DamagedBlob and what the store raises."""
        with self._locks[sha256]:  # of two that want the same, one waits and finds it there
            for _ in range(3):
                copy = self._cached(sha256) or self._fetched(sha256, size_bytes)
                with suppress(FileNotFoundError):  # evicted in between by another process
                    _link(copy, target)
                    return
        raise OSError(f"the copy of {sha256} vanished three times; is another cache too small in the same folder?")

    def renew(self, wanted: Iterable[str]) -> None:
        """Marks the copies of these sha256s as used now, so that others are evicted before them."""
        for sha256 in wanted:
            with suppress(FileNotFoundError):
                os.utime(self._name(sha256))

    def _cached(self, sha256: str) -> Path | None:
        """The copy that is there, if it is still what it was."""
        copy = self._name(sha256)
        digest = hashlib.sha256()
        try:
            with copy.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
            os.utime(copy)
        except FileNotFoundError:
            return None
        if digest.hexdigest() == sha256:
            return copy
        log.error("cached_blob_damaged", sha256=sha256, found=digest.hexdigest())
        copy.unlink(missing_ok=True)
        return None

    def _fetched(self, sha256: str, size_bytes: int) -> Path:
        read = self._blobs.reader_of(sha256)
        self._make_room(size_bytes)
        incoming, final, digest = self.folder / "incoming", self._name(sha256), hashlib.sha256()
        self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)  # copies are readable to all who pass it
        incoming.mkdir(exist_ok=True)
        final.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=incoming, prefix=f"{sha256[:12]}-")
        try:
            with os.fdopen(handle, "wb") as file:
                for chunk in _in_order(read, size_bytes):
                    digest.update(chunk)
                    file.write(chunk)
                    self.moved_bytes += len(chunk)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o444)
            if digest.hexdigest() != sha256:
                raise DamagedBlob(digest.hexdigest())
            Path(name).replace(final)
        finally:
            Path(name).unlink(missing_ok=True)
        return final

    def _make_room(self, wanted_bytes: int) -> None:
        """Evicts copies until this many bytes more fit: the least recently used first. Copies hard-linked by servers free nothing."""
        with self._making_room:
            there = sorted((found.st_mtime, found.st_size, found.st_nlink, path) for path, found in self._copies())
            total = sum(size for _, size, _, _ in there)
            for _, size, links, path in there:
                if total + wanted_bytes <= self.max_bytes:
                    return
                if links == 1:
                    path.unlink(missing_ok=True)
                    total -= size
                    log.info("cached_blob_evicted", sha256=path.name, size_bytes=size)
            if total + wanted_bytes > self.max_bytes:  # the limit never keeps a requested release from running
                log.warning("blob_cache_over_its_limit", bytes=total + wanted_bytes, max_bytes=self.max_bytes)

    def _copies(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.folder.glob("??/*"):
            with suppress(FileNotFoundError):
                yield path, path.stat()

    def sweep(self) -> None:
        """Deletes partial files of killed fetches. Only while no other process uses the folder."""
        shutil.rmtree(self.folder / "incoming", ignore_errors=True)

    def _name(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256


def _in_order(read: Read, size_bytes: int) -> Iterator[bytes]:
    """The blob's bytes from the first to the last, while the next ranges are under way."""
    starts = range(0, size_bytes, RANGE_BYTES)
    if len(starts) < 2:
        yield read(0, size_bytes)
        return
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        under_way: deque[Future[bytes]] = deque()
        try:
            for start in starts:
                while len(under_way) >= AT_ONCE:
                    yield under_way.popleft().result()
                under_way.append(pool.submit(read, start, min(RANGE_BYTES, size_bytes - start)))
            while under_way:
                yield under_way.popleft().result()
        finally:
            for one in under_way:
                one.cancel()


def _link(copy: Path, target: Path) -> None:
    try:
        os.link(copy, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copyfile(copy, target)
        target.chmod(0o444)
