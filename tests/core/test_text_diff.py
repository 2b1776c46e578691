"""Text diffs: what they say, and their bounds."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from registry.core.text_diff import MOST_LINES, TextDiff, compare_texts, lines_of, sorted_json


def told(diff: TextDiff, kind: str) -> list[str]:
    return [line.text for hunk in diff.hunks for line in hunk.lines if line.kind == kind]


def test_lines_numbers_and_what_is_left_out() -> None:
    before = [f"line {i}" for i in range(40)]
    after = [*before[:20], "line 20 is another", *before[21:30], *before[31:], "the end"]
    found = compare_texts("\n".join(before) + "\n", "\n".join(after) + "\n")
    assert (found.added, found.removed, found.lines) == (2, 2, 40)
    assert told(found, "old") == ["line 20", "line 30"] and told(found, "new") == ["line 20 is another", "the end"]
    first = found.hunks[0]
    assert first.skipped == 17 and [line.new for line in first.lines[:3]] == [18, 19, 20]
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
    assert found.skipped_after == (len(after) - b if found.hunks else 0)


def test_too_long_texts_say_so() -> None:
    told = compare_texts("a\n" * (MOST_LINES + 1), "a\n")
    assert told.why_not == "The longer has 2001 lines, and 2000 are compared." and told.lines == 0


def test_lines_end_at_newlines_alone_and_carriage_returns_count() -> None:
    assert lines_of("a\u2028b\x0bc\n") == ["a\u2028b\x0bc"] and lines_of("") == []
    assert compare_texts("a\r\n", "a\n").removed == 1


def test_json_is_sorted_unless_that_would_hide_something() -> None:
    assert sorted_json('{"b": [1, {"z": 0, "y": "ü"}], "a": null}') == (
        json.dumps({"a": None, "b": [1, {"y": "ü", "z": 0}]}, indent=2, ensure_ascii=False) + "\n"
    )
    for text in ('{"a": 1, "a": 2}', "{", "[" * 100_000, "[" * 800 + "1," * 200_000 + "1" + "]" * 800):
        assert sorted_json(text) is None
