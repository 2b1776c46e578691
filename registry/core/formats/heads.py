"""Findings about a file of which only some bytes are here, as when a browser sends the header alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from registry.core.formats import inspect
from registry.core.formats.findings import Findings

#: Bytes of one file. The headers of most files fit; others are read at the seal.
LONGEST_HEAD: Final = 3 << 19
#: Ranges of one file: a graph has one between each two of its weights.
MOST_PIECES: Final = 20_000
#: Reads of memory, which cost no request: the bytes that were sent are the bound.
_MOST_FETCHES: Final = 1 << 30


@dataclass(frozen=True)
class FileParts:
    """Ranges of a file, by their offset; none overlaps another."""

    pieces: tuple[tuple[int, bytes], ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for _, data in self.pieces)

    @property
    def end(self) -> int:
        """The offset behind the last byte that is known."""
        return self.pieces[-1][0] + len(self.pieces[-1][1]) if self.pieces else 0

    def whole(self, size_bytes: int) -> bytes | None:
        """The file, if every byte of it is here."""
        return self.pieces[0][1] if len(self.pieces) == 1 and self.size_bytes == size_bytes else None


class _Beyond(Exception):
    """A reader wants bytes that are not here."""


class _Sparse:
    """A file of which only some parts can be read. A read ends with the part that it began in."""

    def __init__(self, parts: FileParts) -> None:
        self._pieces, self._at = parts.pieces, 0
        self._starts = [offset for offset, _ in parts.pieces]

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        index = bisect_right(self._starts, self._at) - 1
        data = b""
        if index >= 0:
            offset, piece = self._pieces[index]
            data = piece[self._at - offset : self._at - offset + size]
        if not data and size:
            raise _Beyond
        self._at += len(data)
        return data


def joined(pieces: Sequence[tuple[int, bytes]]) -> FileParts | None:
    """The parts in order, neighbours joined; None if two of them overlap."""
    made: list[tuple[int, list[bytes]]] = []
    end = 0
    for offset, data in sorted((offset, data) for offset, data in pieces if data):
        if offset < end:
            return None
        if made and offset == end:
            made[-1][1].append(data)
        else:
            made.append((offset, [data]))
        end = offset + len(data)
    return FileParts(tuple((offset, b"".join(data)) for offset, data in made))


def inspect_head(path: str, head: bytes | FileParts, size_bytes: int) -> Findings | None:
    """As `inspect` does with the whole file; None if the reader needs other bytes too."""
    parts = FileParts(((0, head),)) if isinstance(head, bytes) else head
    if parts.end > size_bytes:
        return None
    try:
        return inspect(path, _Sparse(parts), size_bytes, most_fetches=_MOST_FETCHES)
    except _Beyond:
        return None
