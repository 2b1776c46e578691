"""Golden answers that differ: pure parts of a comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validators.core.compare import Paired, drop_interval, is_not_worse, worse_p
from validators.core.disagreements import LONGEST_TEXT, AnswerList, How, differing, disagreements


def line(i: int, **more: object) -> bytes:
    return json.dumps({"id": f"i{i}", "inputs": {"t": f"text {i}"}, "label": i % 2, **more}).encode() + b"\n"


def test_items_are_joined_by_position_and_nothing_beyond_the_last_is_read() -> None:
    read = []

    def lines() -> Iterator[bytes]:
        yield b"\xef\xbb\xbf" + line(0)
        yield b"\n"
        for i in range(1, 1000):
            read.append(i)
            yield line(i, slice="late") if i > 2 else line(i)

    old, new = AnswerList([0, 1, 0, 1] + [9] * 996), AnswerList([1, 1, 7, 0] + [9] * 996)
    positions = differing(old, new)
    assert positions == [0, 2, 3]
    found = list(disagreements(lines(), positions, old, new))
    assert [(one.id, one.how, one.slice) for one in found] == [
        ("i0", How.LOST, "all"), ("i2", How.LOST, "all"), ("i3", How.LOST, "late")
    ]  # fmt: skip
    assert max(read) <= 4


def test_answers_are_told_in_the_classes_names_and_long_texts_by_their_beginning() -> None:
    names = ["bad", "good"]
    old, new = AnswerList([0], names), AnswerList([1], names)
    (one,) = disagreements([line(1, inputs={"t": "x" * 900, "u": 1}, label=1)], [0], old, new)
    assert (one.label, one.old, one.new, one.how) == ("good", "bad", "good", How.WON)
    assert len(one.text) == LONGEST_TEXT + 1
    with pytest.raises(ValueError, match="different numbers"):
        differing(AnswerList([1]), AnswerList([1, 2]))


@given(st.integers(1, 400), st.integers(0, 60), st.integers(0, 60))
def test_the_interval_of_a_drop_holds_what_the_tests_do_not_refute(n: int, lost: int, won: int) -> None:
    n = n + lost + won
    paired = Paired(n, n - lost - won, lost, won)
    low, high = drop_interval(paired, confidence=0.9)
    assert low - 1e-4 <= paired.drop <= high + 1e-4
    assert worse_p(paired, low + 1e-3) >= 0.05 and not is_not_worse(paired, high - 1e-3, confidence=0.95)
