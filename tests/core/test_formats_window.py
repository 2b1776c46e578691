"""Bounded reading of a file, and protobuf's wire format on top of it: what is read, what it costs, and where it ends."""

from __future__ import annotations

import io

import pytest

from registry.core.formats import protobuf
from registry.core.formats.findings import Malformed
from registry.core.formats.protobuf import Reader, Wire
from registry.core.formats.window import CHUNK_BYTES, JUMP_BYTES, MOST_BYTES, MOST_FETCHES, Window


class Zeros:
    """A file of zeros of any size, which notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.at = 0

    def seek(self, offset: int, /) -> int:
        self.at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        self.asked.append((self.at, size))
        return bytes(size)


class Sips(io.BytesIO):
    """A file that answers each read with at most three bytes, as a socket may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 3))


def window(data: bytes, **limits: int) -> Window:
    return Window(io.BytesIO(data), len(data), **limits)


def test_what_lies_in_one_chunk_is_fetched_once() -> None:
    file = Zeros()
    opened = Window(file, 1 << 40)
    for _ in range(CHUNK_BYTES // 16):
        assert len(opened.read(16)) == 16
    assert file.asked == [(0, 64 * 1024)]
    opened.read(1)
    assert file.asked[1:] == [(CHUNK_BYTES, CHUNK_BYTES)]
    opened.at = CHUNK_BYTES + 5
    opened.read(3)
    assert len(file.asked) == 2  # it lies in what is held
    opened.at = CHUNK_BYTES - 1
    opened.read(1)
    assert file.asked[2:] == [(CHUNK_BYTES - 1, JUMP_BYTES)]  # and this does not


def test_the_last_chunk_ends_with_the_file() -> None:
    file = Zeros()
    opened = Window(file, 100)
    opened.at = 90
    assert len(opened.read(10)) == 10 and file.asked == [(90, 10)]
    with pytest.raises(Malformed, match="it ends at byte 100, and 1 bytes were to follow at byte 100"):
        opened.read(1)
    assert opened.read(0) == b""


def test_a_read_is_whole_though_the_file_answers_in_pieces() -> None:
    opened = Window(Sips(b"0123456789"), 10)
    assert (opened.read(7), opened.read(3)) == (b"0123456", b"789")


def test_head_and_tail_are_as_long_as_the_file_at_most() -> None:
    opened = window(b"0123456789")
    assert (opened.head(3), opened.at, opened.head(99)) == (b"012", 3, b"0123456789")
    assert (opened.tail(3), opened.at, opened.tail(99)) == (b"789", 10, b"0123456789")


def test_a_number_is_read_by_its_form() -> None:
    opened = window(b"\x01\x02\x03\x04\x05\x06")
    assert (opened.number("<H"), opened.number(">I"), opened.at) == (0x0201, 0x03040506, 6)


def test_an_inspection_costs_so_many_fetches_and_no_more() -> None:
    opened = Window(Zeros(), 1 << 40, chunk_bytes=1)
    for _ in range(MOST_FETCHES):
        opened.read(1)
    with pytest.raises(Malformed, match="too large to be read"):
        opened.read(1)
    assert MOST_FETCHES == 20_000  # what an inspection may cost a store in requests
    few = Window(Zeros(), 100, chunk_bytes=1, most_fetches=2)
    assert few.read(1) + few.read(1) == bytes(2)
    with pytest.raises(Malformed, match="too large to be read"):
        few.read(1)


def test_an_inspection_costs_so_many_bytes_and_no_more() -> None:
    opened = Window(Zeros(), 1 << 40, chunk_bytes=1)
    for _ in range(16):
        opened.read(64 << 20)
    assert MOST_BYTES == 1 << 30 == opened.at
    with pytest.raises(Malformed, match="too large to be read"):
        opened.read(1)


def test_a_file_that_is_shorter_than_its_size_says_where_it_ends() -> None:
    opened = Window(io.BytesIO(b"0123456789"), 20)
    assert opened.read(10) == b"0123456789"
    with pytest.raises(Malformed, match="it ends at byte 10, and its size was given as 20"):
        opened.read(1)


# --- protobuf: every kind of field, by the examples of protobuf.dev/programming-guides/encoding


def fields(data: bytes) -> list[Wire]:
    return list(Reader(window(data)).fields(0, len(data)))


def test_a_number_a_text_and_the_two_of_fixed_length() -> None:
    data = b"\x08\x96\x01" + b"\x12\x07testing" + b"\x19" + bytes(8) + b"\x25" + bytes(4) + b"\x28\x7f"
    assert fields(data) == [
        Wire(1, value=150),
        Wire(2, start=5, end=12),
        Wire(3, start=13, end=21),
        Wire(4, start=22, end=26),
        Wire(5, value=127),
    ]
    assert [one.is_bytes for one in fields(data)] == [False, True, True, True, False]
    assert Wire(1, start=0, end=4).is_bytes


@pytest.mark.parametrize("data", [b"\x0b", b"\x0c", b"\x0e", b"\x0f", b"\x00\x01", b"\x02\x01a"])
def test_groups_unknown_kinds_and_field_0_begin_nothing(data: bytes) -> None:
    with pytest.raises(Malformed, match="byte 0 begins no field"):
        fields(data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x12\x03ab", "it ends at byte 4, and a field goes on to byte 5"),
        (b"\x09" + bytes(7), "ends at byte 8, and a field goes on to byte 9"),
        (b"\x0d" + bytes(3), "ends at byte 4, and a field goes on to byte 5"),
        (b"\x08\x80", "it ends at byte 2, inside a number"),
        (b"\x08", "it ends at byte 1, inside a number"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "does not end"),
    ],
)
def test_a_message_that_ends_too_early(data: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        fields(data)


def test_reading_nothing_asks_for_nothing() -> None:
    empty = Window(io.BytesIO(b"abcd"), 4, most_fetches=1)
    assert (empty.read(2), empty.read(0), empty.read(2), empty.read(0)) == (b"ab", b"", b"cd", b"")


def test_the_largest_number_takes_ten_bytes_and_is_cut_to_64_bits() -> None:
    assert fields(b"\x08" + b"\xff" * 9 + b"\x01")[0].value == 2**64 - 1
    assert fields(b"\x08" + b"\xff" * 9 + b"\x7f")[0].value == 2**64 - 1
    assert fields(b"\x08" + b"\x80" * 9 + b"\x01")[0].value == 2**63


def test_whole_numbers_packed_or_one_by_one_with_their_sign() -> None:
    reader = Reader(window(b"\x0a\x0d\x01\x96\x01" + b"\xff" * 9 + b"\x01" + b"\x10\x05"))
    packed, single = reader.fields(0, 17)
    assert reader.numbers(packed, 3) == [1, 150, -1] and reader.numbers(single, 0) == [5]
    with pytest.raises(Malformed, match="field 1 holds more than 2 numbers"):
        reader.numbers(packed, 2)
    negative = Reader(window(b""))
    assert negative.numbers(Wire(1, value=2**63), 1) == [-(2**63)]
    assert negative.numbers(Wire(1, value=2**63 - 1), 1) == [2**63 - 1]


def test_a_text_is_cut_where_the_caller_says_and_a_number_is_none() -> None:
    text = "é" * 600
    data = b"\x0a\xb0\x09" + text.encode()
    reader = Reader(window(data))
    (field,) = reader.fields(0, len(data))
    assert (reader.text(field), reader.text(field, 4), reader.data(field, 3)) == ("é" * 500, "éé", b"\xc3\xa9\xc3")
    assert reader.data(field, 5000) == text.encode()
    with pytest.raises(Malformed, match="field 7 is a number, and text was to be there"):
        reader.data(Wire(7, value=1), 10)


def test_a_file_of_too_many_parts_is_refused_at_all_levels_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MOST_FIELDS", 3)
    assert len(fields(b"\x08\x01" * 3)) == 3
    with pytest.raises(Malformed, match="too many parts"):
        fields(b"\x08\x01" * 4)
    reader = Reader(window(b"\x08\x01" * 2))
    assert len(list(reader.fields(0, 4))) == 2
    with pytest.raises(Malformed, match="too many parts"):
        list(reader.fields(0, 4))
