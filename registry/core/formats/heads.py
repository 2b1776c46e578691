"""What the first bytes of a file say of it, where the rest is elsewhere: as in a browser, before anything is sent."""

from __future__ import annotations

from typing import Final

from registry.core.formats import inspect
from registry.core.formats.findings import Findings

#: Of one file. The headers of most weights fit; what does not is read at the seal.
LONGEST_HEAD: Final = 256 << 10


class _Beyond(Exception):
    """A reader wants bytes that are not here."""


class _Head:
    """The beginning of a file of `size` bytes; what lies behind it cannot be read."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size, self._at = data, size, 0

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        if self._at + size > len(self._data):
            raise _Beyond
        self._at += size
        return self._data[self._at - size : self._at]


def inspect_head(path: str, head: bytes, size_bytes: int) -> Findings | None:
    """As `inspect` does with the whole file; None where the first bytes do not suffice to say anything."""
    if len(head) > size_bytes:
        return None
    try:
        return inspect(path, _Head(head, size_bytes), size_bytes, chunk_bytes=1)
    except _Beyond:
        return None
