"""A bounded view of a file that can seek: what is read is counted, and nothing beyond the end is asked for."""

from __future__ import annotations

import struct
from typing import Final, Protocol

from registry.core.formats.findings import Malformed

#: Bytes fetched at once; headers are read in small steps, and a remote store answers each fetch with a request.
CHUNK_BYTES: Final = 1 << 16
#: Bytes fetched at once after a long jump, such as over a weight: the next header is short, and the bytes behind it may be a weight again.
JUMP_BYTES: Final = 1 << 12
#: Upper bounds on one inspection's fetches and bytes, independent of what the file declares.
MOST_FETCHES: Final = 20_000
MOST_BYTES: Final = 1 << 30


class Seekable(Protocol):
    """An open binary file, or the like of one in a store."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> int: ...


class Window:
    """The `size` bytes of a file, read in order or from any place. Raises Malformed where there is less than asked."""

    def __init__(
        self, readable: Seekable, size: int, *, chunk_bytes: int = CHUNK_BYTES, most_fetches: int = MOST_FETCHES
    ) -> None:
        self.size = size
        self._chunk_bytes, self._most_fetches = chunk_bytes, most_fetches
        self.at = 0
        self._readable = readable
        self._start, self._held = 0, b""
        self._fetches = self._bytes = 0

    def read(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > self.size - self.at:
            raise Malformed(
                f"it ends at byte {self.size}, and {count} bytes were to follow at byte {self.at}",
                "Send the whole file.",
            )
        offset = self.at - self._start
        if not 0 <= offset <= offset + count <= len(self._held):
            self._fetch(count)
            offset = 0
        self.at += count
        return self._held[offset : offset + count]

    def head(self, count: int) -> bytes:
        """The first bytes, at most `count`; reading goes on after them."""
        self.at = 0
        return self.read(min(count, self.size))

    def tail(self, count: int) -> bytes:
        """The last bytes, at most `count`."""
        self.at = self.size - min(count, self.size)
        return self.read(self.size - self.at)

    def number(self, form: str) -> int:
        """One whole number by its struct format, such as "<Q"."""
        found: int = struct.unpack(form, self.read(struct.calcsize(form)))[0]
        return found

    def _fetch(self, count: int) -> None:
        is_far = not 0 <= self.at - self._start <= len(self._held) + CHUNK_BYTES
        chunk_bytes = min(self._chunk_bytes, JUMP_BYTES) if is_far else self._chunk_bytes
        wanted = min(max(count, chunk_bytes), self.size - self.at)
        self._fetches += 1
        if self._fetches > self._most_fetches or self._bytes + count > MOST_BYTES:
            raise Malformed("its header is too large to be read", "Split the file into smaller ones.")
        self._readable.seek(self.at)
        pieces, held = [], 0
        while held < count and (piece := self._readable.read(wanted - held)):
            pieces.append(piece)
            held += len(piece)
        self._bytes += held
        self._start, self._held = self.at, b"".join(pieces)
        if len(self._held) < count:
            raise Malformed(
                f"it ends at byte {self.at + len(self._held)}, and its size was given as {self.size}",
                "Send the whole file.",
            )
