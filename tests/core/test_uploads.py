"""How a file is cut, what a signed address says, and when bytes are the announced ones."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.schema import Problem
from registry.core.uploads import (
    MIB,
    MOST_SIGNED,
    MOVES,
    PART_BYTES,
    Part,
    PartPlan,
    PartTicket,
    UploadState,
    base64_of,
    bytes_problem,
    hex_of,
    part_size_of,
    read_part_digests,
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


# --- what is read of a request

DIGEST = "d" * 64
THREE = PartPlan(2500, 1000)


def requested(numbers: Any, sha256: Any) -> tuple[dict[int, str], list[str]]:
    problems: list[Problem] = []
    wanted = read_requested_parts(numbers, sha256, THREE, problems)
    return wanted, [f"{one.field} {one.message} {one.fix}" for one in problems]


def test_requested_parts_come_back_with_bare_digests() -> None:
    assert requested([3, 1], [f"sha256:{DIGEST}", "e" * 64]) == ({3: DIGEST, 1: "e" * 64}, [])


@pytest.mark.parametrize(
    ("numbers", "sha256", "says"),
    [
        ([0], [DIGEST], ["numbers[0] 0 is not a part. The parts are 1 to 3."]),
        ([4], [DIGEST], ["numbers[0] 4 is not a part. The parts are 1 to 3."]),
        ([True], [DIGEST], ["numbers[0] True is not a part. The parts are 1 to 3."]),
        (["1"], [DIGEST], ["numbers[0] '1' is not a part. The parts are 1 to 3."]),
        ([1, 2, 1], [DIGEST] * 3, ["numbers a part is named twice. Name each part once."]),
        (
            [1, 1],
            [DIGEST, "x"],
            [
                "sha256[1] 'x' is not a sha256. Write 64 hex digits in lower case, such as the first word that `sha256sum` prints."
            ],
        ),
    ],
)
def test_a_part_that_cannot_be_signed_is_named(numbers: list[Any], sha256: list[str], says: list[str]) -> None:
    assert requested(numbers, sha256) == ({}, says)


@pytest.mark.parametrize(
    ("numbers", "sha256"), [([], []), ([1], []), ([1], [DIGEST] * 2), (1, [DIGEST]), ([1], DIGEST)]
)
def test_numbers_and_digests_are_two_lists_of_one_length(numbers: Any, sha256: Any) -> None:
    wanted, (says,) = requested(numbers, sha256)
    assert wanted == {} and "two lists of one length" in says


def test_a_hundred_parts_are_signed_in_one_call_and_no_more() -> None:
    many, problems = PartPlan(500, 1), list[Problem]()
    assert len(read_requested_parts([*range(1, 101)], [DIGEST] * 100, many, problems)) == 100 and not problems
    assert read_requested_parts([*range(1, 102)], [DIGEST] * 101, many, problems) == {}
    assert [one.message for one in problems] == ["101 parts at once are too many."] and MOST_SIGNED == 100


def test_each_part_of_a_list_of_digests_is_read() -> None:
    def digests(value: Any) -> tuple[list[str], list[str]]:
        problems: list[Problem] = []
        return read_part_digests(value, THREE, problems), [one.field for one in problems]

    assert digests([DIGEST, f"sha256:{DIGEST}", "e" * 64]) == ([DIGEST, DIGEST, "e" * 64], [])
    assert digests([DIGEST, "x", DIGEST]) == ([], ["part_sha256[1]"])
    assert digests([DIGEST] * 2) == digests([DIGEST] * 4) == digests(None) == digests("abc") == ([], ["part_sha256"])


def test_parts_of_sixteen_mebibytes_are_the_least_unless_it_is_asked_for_less() -> None:
    assert PART_BYTES == 16 * MIB == 16_777_216
    assert part_size_of(1999 * 10, 10) == 10 and part_size_of(1999 * 10 + 1, 10) == 20
    assert part_size_of(1999 * 20, 10) == 20 and part_size_of(1999 * 20 + 1, 10) == 40


def test_the_first_and_the_last_part() -> None:
    assert THREE.part(1) == Part(1, 0, 1000) and THREE.part(3) == Part(3, 2000, 500) and THREE.count == 3
    assert PartPlan(2000, 1000).count == 2 and PartPlan(2001, 1000).part(3).size_bytes == 1
    assert PartPlan(0, 1000).parts() == [Part(1, 0, 0)]


def test_a_signature_is_known_and_its_case_does_not_matter() -> None:
    said = f"sluicegate part upload v1\n{'a' * 32}/3/2000/1000/{'b' * 64}/1800000000"
    signature = hmac.new(b"key", said.encode(), hashlib.sha256).hexdigest()
    assert TICKET.signature(b"key") == signature and TICKET.is_signed_by(b"key", signature.upper())


def test_an_upload_moves_as_its_page_says() -> None:
    assert {state.value: {one.value for one in after} for state, after in MOVES.items()} == {
        "open": {"verifying", "aborted"},
        "verifying": {"verified", "quarantined", "aborted"},
        "verified": set(),
        "quarantined": {"aborted"},
        "aborted": set(),
    }
