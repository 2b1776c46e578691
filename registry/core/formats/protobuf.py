"""The wire format of Protocol Buffers, field by field, without a schema and without reading what is passed over.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from registry.core.formats.findings import Malformed
from registry.core.formats.window import Window

#: Fields that one file may be made of, at all levels that are looked into.
MOST_FIELDS: Final = 8_000_000
#: Messages up to this size are read at once and parsed in memory, which is three times as fast. A reader of parts of a file has such
#: messages whole (`heads`, web/static/web/upload/heads.js).
SMALL_BYTES: Final = 1024
_FIX: Final = "Export it again, or send the whole file."


class Wire(NamedTuple):
    """One field: its number, and either a whole number or the place of its bytes."""

    number: int
    value: int = 0
    start: int = -1
    end: int = -1

    @property
    def is_bytes(self) -> bool:
        return self.start >= 0


class Reader:
    """Walks messages inside a window."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self._fields = 0

    def fields(self, start: int, end: int) -> Iterator[Wire]:
        """The fields of the message between two places, in order. Raises Malformed."""
        window, at = self.window, start
        if end - start <= SMALL_BYTES:
            window.at = start
            yield from self._small(window.read(end - start), start)
            return
        while at < end:
            self._count()
            window.at = at
            key = self._varint(end)
            value = self._varint(end) if key & 7 in (0, 2) else 0
            found = _wire(key, value, at, window.at)
            at = found.end if found.is_bytes else window.at
            if at > end:
                raise Malformed(f"it ends at byte {end}, and a field goes on to byte {at}", _FIX)
            yield found

    def _small(self, data: bytes, start: int) -> Iterator[Wire]:
        """The fields of a message that is in memory and begins at `start` of the file."""
        at, size = 0, len(data)
        while at < size:
            self._count()
            first = at
            key, at = _varint_of(data, at, start)
            value = 0
            if key & 7 in (0, 2):
                value, at = _varint_of(data, at, start)
            found = _wire(key, value, start + first, start + at)
            if found.is_bytes:
                at = found.end - start
            if at > size:
                raise Malformed(f"it ends at byte {start + size}, and a field goes on to byte {start + at}", _FIX)
            yield found

    def _count(self) -> None:
        self._fields += 1
        if self._fields > MOST_FIELDS:
            raise Malformed("it has too many parts to be read", "Split the file.")

    def text(self, field: Wire, most: int = 1000) -> str:
        """A field's text, cut after `most` bytes."""
        return self.data(field, most).decode("utf-8", "replace")

    def data(self, field: Wire, most: int) -> bytes:
        """A field's bytes, at most `most` of them."""
        if not field.is_bytes:
            raise Malformed(f"field {field.number} is a number, and text was to be there", _FIX)
        self.window.at = field.start
        return self.window.read(min(field.end - field.start, most))

    def numbers(self, field: Wire, most: int) -> list[int]:
        """The whole numbers of a repeated field, which may come packed or one by one."""
        if not field.is_bytes:
            return [_signed(field.value)]
        found = []
        self.window.at = field.start
        while self.window.at < field.end:
            found.append(_signed(self._varint(field.end)))
            if len(found) > most:
                raise Malformed(f"field {field.number} holds more than {most} numbers", _FIX)
        return found

    def _varint(self, end: int) -> int:
        value, shift = 0, 0
        while True:
            if self.window.at >= end:
                raise Malformed(f"it ends at byte {end}, inside a number", _FIX)
            byte = self.window.read(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF
            shift += 7
            if shift >= 70:
                raise Malformed("a number in it does not end", _FIX)


def _wire(key: int, value: int, at: int, behind: int) -> Wire:
    """The field with its key at `at`. `value`: the number, or the length of the bytes, which end before `behind`."""
    number, wire_type = key >> 3, key & 7
    if number and wire_type == 0:
        return Wire(number, value=value)
    if number and wire_type == 2:
        return Wire(number, start=behind, end=behind + value)
    if number and wire_type in (1, 5):
        return Wire(number, start=behind, end=behind + (8 if wire_type == 1 else 4))
    raise Malformed(f"byte {at} begins no field", _FIX)


def _varint_of(data: bytes, at: int, start: int) -> tuple[int, int]:
    """(the whole number at this place of the data, the place behind it)."""
    value, shift = 0, 0
    while True:
        if at >= len(data):
            raise Malformed(f"it ends at byte {start + len(data)}, inside a number", _FIX)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift >= 70:
            raise Malformed("a number in it does not end", _FIX)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
