"""Golden sets and answers at the edges of what is taken, and samples."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ledger.core.errors import Invalid
from validators.core import golden_set
from validators.core.answers import answers_in, expected_labels, in_words
from validators.core.golden_set import GoldenItem, parse_golden_set
from validators.core.sample import sample_of


def _line(**changes: Any) -> str:
    return json.dumps({"id": "a", "inputs": {"text": "good"}, "label": 1, "slice": "news", **changes})


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        ({"id": "x" * 200}, True),
        ({"id": "x" * 201}, False),
        ({"slice": "x" * 100}, True),
        ({"slice": "x" * 101}, False),
        ({"slice": ""}, False),
        ({"label": "x"}, True),
        ({"label": 0.5}, False),
        ({"inputs": ["x"]}, False),
    ],
)
def test_an_items_texts_have_a_length_that_fits(changes: dict[str, Any], is_read: bool) -> None:
    line = _line(**changes).encode()
    if is_read:
        (item,) = parse_golden_set(line)
        assert {name: getattr(item, name) for name in changes} == changes
    else:
        with pytest.raises(Invalid, match="line 1"):
            parse_golden_set(line)


def test_no_more_than_twenty_mistakes_are_named() -> None:
    with pytest.raises(Invalid) as caught:
        parse_golden_set(b"{\n" * 30)
    assert [error["field"] for error in caught.value.facts["errors"]] == [f"line {n}" for n in range(1, 21)]


def test_a_set_has_at_most_200_000_items(monkeypatch: pytest.MonkeyPatch) -> None:
    assert golden_set.MAX_ITEMS == 200_000
    monkeypatch.setattr(golden_set, "MAX_ITEMS", 3)
    lines = [_line(id=str(n)) for n in range(4)]
    assert len(parse_golden_set("\n".join(lines[:3]).encode())) == 3
    with pytest.raises(Invalid, match="line 3: 4 items are too many. Keep to 3"):
        parse_golden_set("\n".join(lines).encode())


def test_a_file_without_items_is_wrong_from_its_first_line_on() -> None:
    for empty in (b"", b"\n\n"):
        with pytest.raises(Invalid, match="line 1: the file holds no item"):
            parse_golden_set(empty)


def test_an_id_twice_names_the_line_of_the_first() -> None:
    with pytest.raises(Invalid, match="line 4: the id 'b' is that of line 3"):
        parse_golden_set("\n".join([_line(), "", _line(id="b"), _line(id="b")]).encode())


def test_answers_of_one_score_are_yes_from_one_half_on() -> None:
    scores = np.array([[0.4999], [0.5], [0.75], [np.inf]], np.float32)
    assert answers_in(scores, 4) == [0, 1, 1, None]
    assert answers_in(scores[:, 0], 4) == [0, 1, 1, None]


def test_answers_of_many_scores_are_the_index_of_the_largest_whatever_their_type_and_shape() -> None:
    assert answers_in(np.array([[3, 9, 4], [7, 1, 1]]), 2) == [1, 0]
    assert answers_in(np.array([[[1, 2], [8, 3]]], np.float32), 1) == [2]
    assert answers_in(np.array([True, False]), 2) == [1, 0]
    assert answers_in(np.array(["yes", "no"]), 2) == ["yes", "no"]


@pytest.mark.parametrize("output", [np.float32(1), np.zeros((2, 0)), np.zeros((1, 2)), np.zeros((3, 2))])
def test_an_output_without_a_row_for_each_item_has_no_answers(output: Any) -> None:
    with pytest.raises(ValueError, match="for 2 items"):
        answers_in(np.asarray(output), 2)


def test_an_index_beyond_the_names_stays_an_index() -> None:
    assert [in_words(index, ["no", "yes"]) for index in (-1, 0, 1, 2)] == [-1, "no", "yes", 2]
    assert in_words("yes", ["no", "yes"]) == "yes" and in_words(None, ["no"]) is None and in_words(1, None) == 1


def test_labels_are_compared_where_one_kind_is_in_both() -> None:
    items = [GoldenItem("a", {}, 1), GoldenItem("b", {}, "no")]
    assert expected_labels(items, [0, None], None) == [1, "no"]
    assert expected_labels(items, [None, None], None) == [1, "no"], "no answer at all is no answer of another kind"


def test_a_sample_is_rising_and_all_of_it_where_it_is_as_large_as_the_whole() -> None:
    assert sample_of(7, 7) == list(range(7))
    drawn = sample_of(1000, 50)
    assert drawn == sorted(set(drawn)) and len(drawn) == 50 and drawn[0] >= 0 and drawn[-1] < 1000
    assert drawn == sample_of(1000, 50, seed=0) != sample_of(1000, 50, seed=1)
