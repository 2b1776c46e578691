"""The wire format of Protocol Buffers, field by field, without a schema and without reading what is passed over.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from registry.core.formats.findings import Malformed
from registry.core.formats.window import Window

#: Fields that one file may be made of, at all levels that are looked into.
MOST_FIELDS: Final = 2_000_000
_FIX: Final = "Export it again, or send the whole file."


@dataclass(frozen=True)
class Wire:
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
        while at < end:
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise Malformed("it has too many parts to be read", "Split the file.")
            window.at = at
            key = self._varint(end)
            number, wire_type = key >> 3, key & 7
            if number == 0:
                raise Malformed(f"byte {at} begins no field", _FIX)
            if wire_type == 0:
                found = Wire(number, value=self._varint(end))
                at = window.at
            elif wire_type == 2:
                length = self._varint(end)
                found = Wire(number, start=window.at, end=window.at + length)
                at = found.end
            elif wire_type in (1, 5):
                at = window.at + (8 if wire_type == 1 else 4)
                found = Wire(number, start=window.at, end=at)
            else:
                raise Malformed(f"byte {at} begins no field", _FIX)
            if at > end:
                raise Malformed(f"it ends at byte {end}, and a field goes on to byte {at}", _FIX)
            yield found

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


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
