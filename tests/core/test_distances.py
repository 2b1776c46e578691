"""How far answers are apart: numbers as vectors and value by value, boxes, texts, JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from validators.core.boxes import boxes_distance, detections, overlaps
from validators.core.distances import cosine_distance, largest_relative_error, mean_relative_error, relative_errors, rms
from validators.core.json_shape import fault_of_schema, fits, read, schema_like
from validators.core.texts import length_ratio, normalised, token_distance, tokens_of


def numbers(*values: Any) -> Any:
    return np.array(values, dtype=np.float64)


def test_an_angle_is_seen_and_a_length_is_not() -> None:
    one, turned = numbers(1, 0), numbers(math.cos(0.1), math.sin(0.1))
    assert cosine_distance(one, turned) == pytest.approx(1 - math.cos(0.1))
    assert cosine_distance(one, 7 * one) == 0
    assert cosine_distance(numbers(3, 4), numbers(4, 3)) == pytest.approx(0.04)
    assert cosine_distance(one, -one) == 2
    assert (cosine_distance(0 * one, 0 * one), cosine_distance(0 * one, one), cosine_distance(one, 0 * one)) == (
        0,
        1,
        1,
    )
    assert cosine_distance(one, numbers(1, 0, 0)) == math.inf


def test_an_error_is_in_parts_of_the_value_its_row_or_a_hundredth_of_the_set() -> None:
    assert largest_relative_error(numbers(2.0), numbers(2.1), 0.0) == pytest.approx(0.05)
    beside_nothing = relative_errors(numbers(3.0, 0.0), numbers(3.0, 0.3), 0.0)
    assert beside_nothing is not None and beside_nothing.tolist() == pytest.approx([0, 0.3 / rms(numbers(3, 0))])
    assert largest_relative_error(numbers(0.0), numbers(0.02), 100.0) == pytest.approx(0.02)
    assert largest_relative_error(numbers(0.0), numbers(0.0), 0.0) == 0
    assert largest_relative_error(numbers(0.0), numbers(0.1), 0.0) == math.inf
    assert mean_relative_error(numbers(1, 1), numbers(1, 1.2), 0.0) == pytest.approx(0.1)
    assert (
        largest_relative_error(numbers(1), numbers(1, 2), 0.0)
        == math.inf
        == mean_relative_error(numbers(1), numbers(1, 2), 0)
    )
    assert rms(numbers()) == 0
    assert largest_relative_error(numbers(), numbers(), 0.0) == 0 == mean_relative_error(numbers(), numbers(), 0.0)


SQUARE = [0.0, 0.0, 10.0, 10.0]


def test_boxes_overlap_by_their_common_part() -> None:
    assert overlaps(numbers(SQUARE), numbers(SQUARE, [5, 0, 15, 10], [20, 20, 30, 30])).tolist() == [[1.0, 1 / 3, 0.0]]
    assert overlaps(numbers([5, 5, 5, 5]), numbers([5, 5, 5, 5])).tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("got", "distance"),
    [
        ([[*SQUARE, 0.9, 1]], 0.0),
        ([], 1.0),
        ([[*SQUARE, 0.9, 2]], 1.0),  # another class
        ([[*SQUARE, 0.4, 1]], 1.0),  # not sure enough
        ([[*SQUARE, 0.9, 1], [50, 50, 60, 60, 0.8, 1]], 1 - 2 / 3),  # one made up
        ([[*SQUARE, 0.9, 1], [0, 0, 10, 9, 0.8, 1]], 1 - 2 / 3),  # the same one twice
        ([[0, 0, 10, 9, 0.9, 1]], 0.1),
        ([[0, 0, 10, 4.9, 0.9, 1]], 1.0),  # less than a half of it
    ],
)
def test_an_images_boxes_are_held_against_those_expected(got: list[list[float]], distance: float) -> None:
    assert boxes_distance([numbers([*SQUARE, 1.0, 1])], [numbers(*got)]) == pytest.approx(distance)


def test_boxes_may_be_one_output_or_several_and_only_boxes() -> None:
    together = [numbers([*SQUARE, 0.9, 3], [1, 1, 2, 2, 0.1, 0])]
    apart = [numbers(SQUARE, [1, 1, 2, 2]), numbers(0.9, 0.1), numbers(3, 0)]
    assert boxes_distance(together, apart) == 0
    assert detections([numbers(SQUARE)]).tolist() == [[*SQUARE, 1, 0]]
    assert detections([numbers([*SQUARE, 0.5], [*SQUARE, 0.499])]).tolist() == [[*SQUARE, 0.5, 0]]
    assert boxes_distance([numbers()], [np.zeros((0, 6))]) == 0
    assert boxes_distance([numbers([1, 2, 3])], together) == math.inf
    assert boxes_distance([numbers(SQUARE), numbers(1, 2)], together) == math.inf


def test_the_surest_box_chooses_first() -> None:
    expected = numbers([*SQUARE, 1, 0], [0, 0, 10, 12, 1, 0])
    found = numbers([0, 0, 10, 11, 0.6, 0], [0, 0, 10, 12, 0.9, 0])
    assert boxes_distance([expected], [found]) == pytest.approx(1 - 2 * (1 + 10 / 11) / 4)


def test_texts_are_the_same_but_for_case_space_and_composition() -> None:
    assert normalised("  Caf\u0065\u0301\n\tSTRASSE ") == normalised("caf\u00e9 straße")
    assert normalised("a b") != normalised("ab")


def test_tokens_are_words_and_signs_in_their_order() -> None:
    assert len(tokens_of("a " * 3000)) == 2000
    assert tokens_of("It's  fine!") == ["it", "'", "s", "fine", "!"]
    assert token_distance("the cat sat", "The cat sat") == 0 == token_distance("", " ")
    assert token_distance("a b c d", "a c d") == pytest.approx(1 - 6 / 7)
    assert token_distance("a b", "b a") == 0.5 == token_distance("a b", "c b")
    assert token_distance("a", "z") == 1 == token_distance("", "a")
    assert (length_ratio("abc", "abc"), length_ratio("", "a"), length_ratio("abc", "a")) == (1, 2, 0.5)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_the_common_subsequence_is_the_longest(a: list[str], b: list[str]) -> None:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    expected = 1 - 2 * table[-1][-1] / (len(a) + len(b)) if a or b else 0.0
    assert token_distance(" ".join(a), " ".join(b)) == pytest.approx(expected)


SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "note": {"type": ["string", "null"]},
        "one": {"const": 1},
    },
}


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ('{"name": "x", "age": 3}', True),
        ('{"name": "x", "age": 3, "tags": ["a", "b"], "note": null, "one": 1}', True),
        ('{"name": "x"}', False),
        ('{"name": "", "age": 3}', False),
        ('{"name": "x", "age": 3.5}', False),
        ('{"name": "x", "age": true}', False),
        ('{"name": "x", "age": 151}', False),
        ('{"name": "x", "age": -1}', False),
        ('{"name": "x", "age": 3, "more": 1}', False),
        ('{"name": "x", "age": 3, "tags": ["c"]}', False),
        ('{"name": "x", "age": 3, "tags": ["a", "a", "a"]}', False),
        ('{"name": "x", "age": 3, "note": 1}', False),
        ('{"name": "x", "age": 3, "one": true}', False),
        ("[]", False),
    ],
)
def test_a_value_is_as_its_schema_says(text: str, is_valid: bool) -> None:
    assert fault_of_schema(SCHEMA) is None
    is_json, value = read(text)
    assert is_json and fits(value, SCHEMA) is is_valid


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "NaN", '{"a": Infinity}', "[" * 100_000])
def test_what_is_no_json_is_told(text: str) -> None:
    assert read(text) == (False, None)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ([], "not an object"),
        ({"$ref": "#"}, "'$ref'"),
        ({"type": "text"}, "schema.type"),
        ({"type": []}, "schema.type"),
        ({"type": ["string", "text"]}, "schema.type"),
        ({"minimum": "1"}, "schema.minimum"),
        ({"required": [1]}, "schema.required"),
        ({"required": "a"}, "schema.required"),
        ({"properties": []}, "schema.properties"),
        ({"properties": {"a": {"type": "x"}}}, "schema.properties.a.type"),
        ({"items": {"pattern": "x"}}, "'pattern'"),
        ({"additionalProperties": {}}, "schema.additionalProperties"),
    ],
)
def test_a_schema_that_would_not_be_obeyed_is_refused(schema: Any, says: str) -> None:
    assert says in str(fault_of_schema(schema))


def test_another_value_is_like_the_first_by_types_and_keys() -> None:
    like = schema_like({"a": 1, "b": {"c": "x"}, "d": [1, 2], "e": None, "f": True})
    assert fault_of_schema(like) is None
    assert fits({"a": 2.5, "b": {"c": "y", "more": 1}, "d": [], "e": None, "f": False}, like)
    assert not fits({"a": "2", "b": {"c": "y"}, "d": [], "e": None, "f": False}, like)
    assert not fits({"a": 2, "b": {}, "d": [], "e": None, "f": False}, like)
    assert not fits({"a": 2, "b": {"c": "y"}, "d": [], "e": None, "f": 1}, like)


def nested(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


def test_what_lies_deeper_than_32_objects_may_be_anything_and_a_deeper_schema_is_refused() -> None:
    assert not fits(nested(32, 1), schema_like(nested(32, "x")))
    assert fits(nested(33, 1), schema_like(nested(33, "x")))
    assert fits(nested(500, {}), schema_like(nested(500, {})))
    schema: Any = {"type": "string"}
    for _ in range(32):
        schema = {"properties": {"a": schema}}
    assert fault_of_schema(schema) is None
    assert "too deep" in str(fault_of_schema({"items": schema}))
