"""The table of contents of a zip file, read without unpacking anything.

Source: PKWARE APPNOTE 6.3: end of central directory, its 64-bit twin, central directory headers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from registry.core.formats.findings import Malformed, shown
from registry.core.formats.window import Window

MOST_MEMBERS: Final = 100_000
LONGEST_DIRECTORY: Final = 32 << 20
_FIX: Final = "Write the archive again, or send the whole file."
_END, _END_64, _PLACE_64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_ENTRY, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_UNIX: Final = 3


@dataclass(frozen=True)
class ZipEntry:
    """One name in the archive. `start` is where its local header begins; `file_type` is Unix's, 0 where it is not told."""

    name: str
    method: int  # 0: stored as it is
    packed_bytes: int
    size_bytes: int
    start: int
    is_encrypted: bool
    file_type: int = 0
    crc: int = 0


def members(window: Window) -> list[ZipEntry]:
    """Every member. Raises Malformed."""
    size, start = _directory(window)
    if size > LONGEST_DIRECTORY or start + size > window.size:
        raise Malformed(f"its directory claims {size} bytes at byte {start}", _FIX)
    window.at = start
    data, at, found = window.read(size), 0, list[ZipEntry]()
    while at + 46 <= len(data) and len(found) < MOST_MEMBERS:
        member, length = _member(data, at)
        found.append(member)
        at += length
    if at != len(data):
        raise Malformed("its directory is damaged, or names too many files", _FIX)
    return found


def stored(window: Window, member: ZipEntry, most: int) -> bytes:
    """The first bytes of a member that is stored as it is; empty for one that is packed or damaged."""
    if member.method or member.is_encrypted:
        return b""
    try:
        window.at = data_start(window, member)
    except Malformed:
        return b""
    return window.read(min(member.packed_bytes, most))


def data_start(window: Window, member: ZipEntry) -> int:
    """Where the member's packed bytes begin, by its local header. Raises Malformed when they are not in the file."""
    window.at = min(member.start, window.size)
    header = window.read(30)
    name, extra = struct.unpack_from("<HH", header, 26)
    begins = window.at + int(name) + int(extra)
    if not header.startswith(_LOCAL) or begins + member.packed_bytes > window.size:
        raise Malformed(f"{shown(member.name)} is not where its directory says", _FIX)
    return begins


def _directory(window: Window) -> tuple[int, int]:
    """(size, first byte) of the central directory."""
    tail = window.tail(22 + 0xFFFF)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        raise Malformed("it has no table of contents at its end", _FIX)
    size, start = struct.unpack_from("<II", tail, at + 12)
    if 0xFFFFFFFF in (size, start) or tail[max(at - 20, 0) : at].startswith(_PLACE_64):
        place = tail[max(at - 20, 0) : at]
        if not place.startswith(_PLACE_64) or len(place) < 20:
            raise Malformed("its 64-bit table of contents is missing", _FIX)
        window.at = struct.unpack_from("<Q", place, 8)[0]
        record = window.read(56)
        if not record.startswith(_END_64):
            raise Malformed("its 64-bit table of contents is damaged", _FIX)
        size, start = struct.unpack_from("<QQ", record, 40)
    return size, start


def _member(data: bytes, at: int) -> tuple[ZipEntry, int]:
    if data[at : at + 4] != _ENTRY:
        raise Malformed("its directory is damaged", _FIX)
    system = data[at + 5]
    flags, method = struct.unpack_from("<HH", data, at + 8)
    crc, packed, size, name_length, extra_length, comment_length = struct.unpack_from("<IIIHHH", data, at + 16)
    attributes, start = struct.unpack_from("<II", data, at + 38)
    extra_at = at + 46 + name_length
    length = 46 + name_length + extra_length + comment_length
    if at + length > len(data):
        raise Malformed("its directory is cut short", _FIX)
    size, packed, start = _wide(data[extra_at : extra_at + extra_length], size, packed, start)
    name = data[at + 46 : extra_at].decode("utf-8", "replace")
    file_type = (attributes >> 16) & 0o170000 if system == _UNIX else 0
    return ZipEntry(name, method, packed, size, start, bool(flags & 1), file_type, crc), length


def _wide(extra: bytes, size: int, packed: int, start: int) -> tuple[int, int, int]:
    """The 64-bit values where the 32-bit ones are full (extra field 1)."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + length]
            wide = [struct.unpack_from("<Q", body, i)[0] for i in range(0, len(body) - 7, 8)]
            given = iter(wide)
            values = [next(given, value) if value == 0xFFFFFFFF else value for value in (size, packed, start)]
            return values[0], values[1], values[2]
        at += 4 + length
    return size, packed, start
