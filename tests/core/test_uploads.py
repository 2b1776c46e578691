"""How a file is cut, what a signed address says, and when bytes are the announced ones."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.schema import Problem
from registry.core.uploads import (
    MIB,
    MOVES,
    PartPlan,
    PartTicket,
    UploadState,
    base64_of,
    bytes_problem,
    hex_of,
    part_size_of,
    read_requested_parts,
)

GIB = 1 << 30
TICKET = PartTicket("a" * 32, 3, 2000, 1000, "b" * 64, 1_800_000_000)


@pytest.mark.parametrize(
    ("size", "part"),
    [(0, 16), (1, 16), (10 * GIB, 16), (31 * GIB, 16), (32 * GIB, 32), (62 * GIB, 32), (1000 * GIB, 1024)],
)
def test_parts_grow_so_that_there_are_fewer_than_2000(size: int, part: int) -> None:
    assert part_size_of(size) == part * MIB
    assert PartPlan(size, part_size_of(size)).count < 2000


@given(st.integers(0, 5000), st.integers(1, 700))
def test_parts_cover_the_file_without_gap_or_overlap(size: int, part_size: int) -> None:
    parts = PartPlan(size, part_size).parts()
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    at = 0
    for part in parts:
        assert part.offset == at and part.size_bytes <= part_size
        at += part.size_bytes
    assert at == size
    assert all(part.size_bytes == part_size for part in parts[:-1])
    assert parts[-1].size_bytes > 0 or size == 0


@pytest.mark.parametrize("number", [0, -1, 4])
def test_there_is_no_other_part(number: int) -> None:
    with pytest.raises(ValueError, match="of 3"):
        PartPlan(2500, 1000).part(number)


def test_a_ticket_is_signed_as_a_whole() -> None:
    signature = TICKET.signature(b"key")
    assert TICKET.is_signed_by(b"key", signature) and not TICKET.is_signed_by(b"other", signature)
    for field in fields(TICKET):
        value = getattr(TICKET, field.name)
        other = replace(TICKET, **{field.name: value + 1 if isinstance(value, int) else "c" + value[1:]})
        assert not other.is_signed_by(b"key", signature), field.name


@given(st.binary(min_size=32, max_size=32))
def test_a_digest_is_written_as_s3_does_and_read_back(digest: bytes) -> None:
    assert hex_of(base64_of(digest.hex())) == digest.hex()


@given(
    st.one_of(st.none(), st.integers(), st.lists(st.one_of(st.integers(), st.text(), st.none()))), st.lists(st.text())
)
def test_any_list_of_parts_is_read_or_refused(numbers: object, sha256: list[str]) -> None:
    problems: list[Problem] = []
    wanted = read_requested_parts(numbers, sha256, PartPlan(2500, 1000), problems)
    assert bool(problems) != bool(wanted)
    assert all(problem.message and problem.fix for problem in problems)


def test_a_problem_names_both_digests_or_both_sizes() -> None:
    assert bytes_problem("a" * 64, 5, "a" * 64, 5) == ""
    assert "a" * 64 in bytes_problem("a" * 64, 5, "b" * 64, 5) and "b" * 64 in bytes_problem("a" * 64, 5, "b" * 64, 5)
    assert "7 bytes" in bytes_problem("a" * 64, 5, "b" * 64, 7)


def test_what_is_over_stays_over() -> None:
    over = {UploadState.VERIFIED, UploadState.QUARANTINED, UploadState.ABORTED}
    assert {state for state, moves in MOVES.items() if not moves - {UploadState.ABORTED}} == over
    assert set(MOVES) == set(UploadState)
