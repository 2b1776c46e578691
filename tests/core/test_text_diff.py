"""Text diffs: what they say, and that no pair of texts makes more work than is paid for."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core import text_diff
from registry.core.text_diff import MOST_CHANGED, MOST_WORK, TextDiff, compare_texts, lines_of, sorted_json


def told(diff: TextDiff, kind: str) -> list[str]:
    return [line.text for hunk in diff.hunks for line in hunk.lines if line.kind == kind]


def test_lines_numbers_marks_and_what_is_left_out() -> None:
    before = [f"line {i}" for i in range(40)]
    after = [*before[:20], "line 20 is another", *before[21:30], *before[31:], "the end"]
    found = compare_texts("\n".join(before) + "\n", "\n".join(after) + "\n")
    assert (found.added, found.removed, found.left_off, found.is_coarse) == (2, 2, 0, False)
    assert told(found, "old") == ["line 20", "line 30"] and told(found, "new") == ["line 20 is another", "the end"]
    first = found.hunks[0]
    assert first.skipped == 17 and [line.new for line in first.lines[:3]] == [18, 19, 20]
    (added,) = [line for line in first.lines if line.kind == "new"]
    assert [added.text[a:b] for a, b in added.marks] == [" is another"]
    assert found.skipped_after == 0
    for hunk in found.hunks:
        for line in hunk.lines:
            assert line.old is None or before[line.old - 1] == line.text
            assert line.new is None or after[line.new - 1] == line.text


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abcd"), max_size=30))
def test_a_diff_rebuilds_both_texts(before: list[str], after: list[str]) -> None:
    found = compare_texts("\n".join([*before, ""]), "\n".join([*after, ""]))
    old, new, a, b = [], [], 0, 0
    for hunk in found.hunks:
        old += before[a : a + hunk.skipped]
        new += after[b : b + hunk.skipped]
        a, b = a + hunk.skipped, b + hunk.skipped
        for line in hunk.lines:
            if line.kind != "new":
                assert line.old == a + 1
                old.append(line.text)
                a += 1
            if line.kind != "old":
                assert line.new == b + 1
                new.append(line.text)
                b += 1
    assert [*old, *before[a:]] == before and [*new, *after[b:]] == after
    assert len(after) - b == found.skipped_after


def _shuffled(count: int, kinds: int, seed: int) -> str:
    lines = [f"kind {i % kinds}" for i in range(count)]
    random.Random(seed).shuffle(lines)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_shuffled(2_000, 6, 1), _shuffled(2_000, 6, 2)),  # quadratic without a look away from popular lines
        (_shuffled(20_000, 110, 1), _shuffled(20_000, 110, 2)),  # each kind just below a hundredth: none is popular
        (_shuffled(3_000, 3_000, 1), _shuffled(3_000, 3_000, 2)),
        ("\n".join("a " * 400 + str(i) for i in range(600)), "\n".join("a " * 401 + str(i) for i in range(600))),
        ("x" * 500_000, "y" * 500_000),
    ],
    ids=["six kinds", "nothing popular", "shuffled", "one word again and again", "one long line"],
)
def test_no_texts_make_more_work_than_is_paid_for(old: str, new: str) -> None:
    found = compare_texts(old, new)
    assert found.work <= 2 * MOST_WORK and not found.why_not
    assert len(told(found, "old")) + len(told(found, "new")) <= MOST_CHANGED
    assert found.left_off == max(0, found.added + found.removed - MOST_CHANGED)


def test_what_the_work_does_not_reach_is_told_as_changed_and_said() -> None:
    old, new = _shuffled(500, 5, 1), _shuffled(500, 5, 2)
    found = compare_texts(old, new, most_work=100)
    assert found.is_coarse and found.work <= 200
    assert found.added == found.removed and found.added > 450
    assert not compare_texts(old, new).is_coarse


def test_too_long_texts_say_so() -> None:
    assert "bytes" in compare_texts("a" * (text_diff.LONGEST_BYTES + 1), "").why_not
    assert "lines" in compare_texts("a\n" * (text_diff.MOST_LINES + 1), "a\n").why_not


def test_lines_end_at_newlines_alone_and_carriage_returns_count() -> None:
    assert lines_of("a\u2028b\x0bc\n") == ["a\u2028b\x0bc"] and lines_of("") == []
    assert compare_texts("a\r\n", "a\n").removed == 1


def test_json_is_sorted_unless_that_would_hide_something() -> None:
    assert sorted_json('{"b": [1, {"z": 0, "y": "ü"}], "a": null}') == (
        json.dumps({"a": None, "b": [1, {"y": "ü", "z": 0}]}, indent=2, ensure_ascii=False) + "\n"
    )
    for text in ('{"a": 1, "a": 2}', "{", "[" * 100_000, "[" * 800 + "1," * 200_000 + "1" + "]" * 800):
        assert sorted_json(text) is None
