"""The envelope's JSON Schema: it is what is committed, and it accepts just what is read without a problem."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from registry.core.envelope import ENVELOPE
from registry.core.json_schema import envelope_schema, schema_of
from registry.core.schema import Flag, Instant, Integer, Json, ListOf, Number, Object, Problem, Record, Text, may, need
from tests.core.test_envelope import FULL

SCHEMA = envelope_schema()
VALID = Draft202012Validator(SCHEMA)


def is_read(value: Any, kind: Any = ENVELOPE) -> bool:
    problems: list[Problem] = []
    kind.read(value, "", problems)
    return not problems


def test_the_committed_schema_is_this_one() -> None:
    committed = Path(__file__).parents[2] / "docs" / "envelope.schema.json"
    assert json.loads(committed.read_text()) == SCHEMA, "run: manage.py envelope_schema docs/envelope.schema.json"


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert VALID.is_valid(FULL) and is_read(FULL) and VALID.is_valid({})


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inner for place in places(item, (*at, key)))]


SCALARS = [
    None,
    True,
    -1,
    0,
    1,
    65,
    2**31,
    0.5,
    -0.5,
    "",
    "none",
    "nvidia",
    "12.4",
    "8.9",
    "1g.10gb",
    "x" * 400,
    "a\x00",
    "\u0663",
]
ODD = st.sampled_from(SCALARS) | st.just([]) | st.just({}) | st.just([1]) | st.just({"p50": 1.5}) | st.just({"x": 1})


@settings(max_examples=500)
@given(st.data())
@pytest.mark.slow
def test_schema_and_reader_agree_on_a_spoilt_envelope(data: st.DataObject) -> None:
    envelope = json.loads(json.dumps(FULL))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places(envelope)[1:]))
        inside = envelope
        for key in place[:-1]:
            inside = inside[key]
        action = data.draw(st.sampled_from(["put", "drop", "add"]))
        if action == "put":
            inside[place[-1]] = deepcopy(data.draw(ODD))  # what is drawn is one object each time
        elif action == "drop":
            del inside[place[-1]]
        elif isinstance(inside, dict):
            inside["surprise"] = 1
        if len(places(envelope)) < 2:
            break
    assert VALID.is_valid(envelope) == is_read(envelope), envelope


PAIR = Record({"a": need(Flag()), "b": may(Flag(), None)})


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Text(5), ["", "abc", "a\nb"], ["abcdef", 1, "a\x00"]),
        (Text(pattern=r"a+", rule="a's"), ["aa"], ["b", "aab", "baa"]),
        (Text(one_of=("a", "b")), ["a"], ["c", 1]),
        (Integer(1, 8, besides=(-1,)), [1, 8, -1], [0, 9, "1", True]),
        (Number(1, 2), [1, 1.5, 2], [0.9, 2.1, "1"]),
        (Number(1, above=True), [1.1], [1]),
        (Flag(), [True], [1, "true"]),
        (Instant(), ["2026-03-01"], [1]),
        (Json(), [None, {"a": [1]}], []),
        (ListOf(Flag(), least=1, most=2), [[True]], [[], [True] * 3, [1], True]),
        (Object(Flag()), [{"a": True}], [{"": True}, {"a": 1}, []]),
        (PAIR, [{"a": True}, {"a": True, "b": None}], [{}, {"a": None}, {"a": True, "c": 1}]),
    ],
)  # fmt: skip
def test_each_kind_as_a_schema(kind: Any, good: list[Any], bad: list[Any]) -> None:
    check = Draft202012Validator(schema_of(kind))
    assert all(check.is_valid(value) and is_read(value, kind) for value in good)
    assert not any(check.is_valid(value) or is_read(value, kind) for value in bad)


def test_a_kind_without_a_schema_says_so() -> None:
    with pytest.raises(TypeError, match="register one"):
        schema_of(object())  # type: ignore[arg-type]
