"""Kinds of field, one by one: each limit at its edge, and what a mistake is told."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import pytest

from registry.core.schema import (
    DEEPEST_JSON,
    INVALID,
    Flag,
    Instant,
    Integer,
    Json,
    ListOf,
    Number,
    Object,
    Problem,
    Record,
    Text,
    join,
    may,
    need,
    repeated,
)


def mistakes(kind: Any, value: Any, at: str = "x") -> list[Problem]:
    problems: list[Problem] = []
    kind.read(value, at, problems)
    return problems


def told(kind: Any, value: Any) -> str:
    """The one mistake of a value, as people read it."""
    problems: list[Problem] = []
    read = kind.read(value, "x", problems)
    (one,) = problems
    assert one.field.startswith("x") and (read is INVALID or isinstance(read, dict))
    return f"{one.message} {one.fix}"


def is_read(kind: Any, value: Any) -> bool:
    problems: list[Problem] = []
    return kind.read(value, "x", problems) == value and not problems


# --- text


def test_text_is_as_long_as_it_may_be_and_plain() -> None:
    assert is_read(Text(5), "a" * 5) and is_read(Text(5), "") and is_read(Text(), "x" * 300)
    assert "at most 5 characters" in told(Text(5), "a" * 6) and mistakes(Text(), "x" * 301)
    assert is_read(Text(), "a\tb\nc é 漢")
    for odd in ("\x00", "\r", "\x1f", "\x7f", "\x9f", "\ud800", "\udfff"):
        assert "holds control characters" in told(Text(), odd)


def test_text_of_a_form_is_that_form_as_a_whole() -> None:
    kind = Text(pattern=r"[0-9]+", like="12", says="a number of things", rule="digits")
    assert is_read(kind, "12") and told(kind, "12a") == "'12a' is not a number of things. Write digits, such as 12."
    assert told(Text(pattern="a", rule="an a"), "b") == "'b' is not of the right form. Write an a."
    assert told(kind, 12) == "12 is not text. Write digits in quotes, such as 12."
    assert told(Text(), 12) == "12 is not text. Write text in quotes."
    with pytest.raises(ValueError, match="no rule in words"):
        Text(pattern="a")


def test_one_of_few_words_and_which_was_meant() -> None:
    kind = Text(one_of=("requests_per_s", "none", "a"), says="a unit")
    assert is_read(kind, "none")
    assert told(kind, "request_per_s") == (
        "'request_per_s' is not a unit. Write one of requests_per_s, none, a. Was requests_per_s meant?"
    )
    assert told(kind, "NONE").endswith("Was none meant?") and told(kind, "A").endswith("Was a meant?")
    assert told(kind, "zzzz") == "'zzzz' is not a unit. Write one of requests_per_s, none, a."
    assert "is not one of the known values" in told(Text(one_of=("a",)), "zzzz")
    assert told(kind, 5) == "5 is not text. Write one of requests_per_s, none, a."


def test_near_is_half_of_the_letters() -> None:
    kind = Text(one_of=("abcd",))
    assert told(kind, "abxx").endswith("Was abcd meant?")  # 2 of 4 letters: just near enough
    assert not told(kind, "abxxx").endswith("meant?")
    record = Record({"abcd": may(Flag()), "ab_long_name": may(Flag())})
    assert told(record, {"abxx": 1}) == "there is no such field. Was abcd meant?"
    assert "Remove it; the fields here are abcd, ab_long_name." in told(record, {"xyzuv": 1})


# --- numbers


def test_whole_numbers_from_least_to_most() -> None:
    kind = Integer(1, 8, besides=(-1,), unit="items")
    assert all(is_read(kind, value) for value in (1, 8, -1))
    for value in (0, 9, -2):
        assert told(kind, value) == f"{value} is out of range. Write a whole number of items, 1 to 8, or -1."
    for odd in (True, False, 1.0, "1", None):
        assert "is not a whole number" in told(kind, odd)
    assert is_read(Integer(), 2**53 - 1) and is_read(Integer(), 0)
    assert told(Integer(), 2**53) == f"{2**53} is out of range. Write a whole number, 0 or more."
    assert mistakes(Integer(), -1) and told(Integer(2, 2**53 - 2), 1).endswith(f"2 to {2**53 - 2}.")


def test_numbers_from_least_to_most_and_above_it() -> None:
    kind = Number(1, 2.5, unit="cores")
    assert all(is_read(kind, value) for value in (1, 1.5, 2.5))
    for value in (0.999, 2.501):
        assert told(kind, value) == f"{value} is out of range. Write a number of cores, at least 1 and at most 2.5."
    assert told(Number(above=True), 0) == "0 is out of range. Write a number, above 0."
    assert is_read(Number(above=True), 1e-300) and is_read(Number(), 0) and is_read(Number(), 1e300)
    for odd in (True, "1", None, math.nan, math.inf, -math.inf, 2**53, -(2**53)):
        assert "is not a number" in told(Number(), odd)
    assert is_read(Number(), 2**53 - 1) and mistakes(Number(), -1e-9)


def test_flags_and_instants() -> None:
    assert is_read(Flag(), True) and is_read(Flag(), False)
    assert all("neither true nor false" in told(Flag(), odd) for odd in (0, 1, "true", None))
    problems: list[Problem] = []
    assert Instant().read(date(2026, 3, 1), "x", problems) == "2026-03-01"
    assert Instant().read(datetime(2026, 3, 1, 12, tzinfo=UTC), "x", problems) == "2026-03-01T12:00:00+00:00"
    assert is_read(Instant(), "2026-03-01T12:00:00Z") and not problems
    assert all("is not a date" in told(Instant(), odd) for odd in ("yesterday", 5, None))


# --- lists, objects and free JSON


def test_lists_have_so_many_items_of_one_kind() -> None:
    kind = ListOf(Integer(0, 5), least=1, most=2)
    assert is_read(kind, [1]) and is_read(kind, [0, 5])
    assert told(kind, []) == "the list has 0 items. List 1 to 2 items." and "3 items" in told(kind, [1, 2, 3])
    assert [one.field for one in mistakes(kind, [9, 9])] == ["x[0]", "x[1]"]
    assert "is not a list" in told(kind, "12") and ListOf(Flag()).read((True,), "x", []) == [True]
    assert (
        is_read(ListOf(Flag()), [])
        and is_read(ListOf(Flag()), [True] * 1000)
        and mistakes(ListOf(Flag()), [True] * 1001)
    )
    assert ListOf(Integer(0, 5)).read([1, 9], "x", []) is INVALID


def test_objects_have_printable_names_and_so_many_members() -> None:
    kind = Object(Flag(), most=2)
    assert is_read(kind, {"a": True, "b": False}) and is_read(kind, {"n" * 256: True}) and is_read(kind, {})
    assert told(kind, {"a": True, "b": True, "c": True}) == "3 members are too many. Write at most 2."
    for odd in ("", "n" * 257, "a\n", 5):
        assert "is not a name" in told(kind, {odd: True})
    assert kind.read({"a": True, "": True}, "x", []) == {"a": True} == kind.read({"a": True, "b": 5}, "x", [])
    assert is_read(Object(Flag()), {str(i): True for i in range(200)})
    assert mistakes(Object(Flag()), {str(i): True for i in range(201)}) and "not an object" in told(kind, [])


def nested(depth: int) -> Any:
    value: Any = 1
    for i in range(depth):
        value = [value] if i % 2 else {"a": value}
    return value


def test_free_json_is_finite_exact_and_fifty_deep() -> None:
    for good in (None, True, 0, 1.5, "a", [], {}, {"a": [1, "b", None]}, 2**53 - 1, nested(50)):
        assert is_read(Json(), good)
    for bad in (
        math.nan,
        math.inf,
        2**53,
        "a\x00",
        "\ud800",
        "\udfff",
        {"a": math.nan},
        [[math.inf]],
        {1: 2},
        {"\x00": 1},
        {1},
    ):
        assert "cannot be written as JSON exactly" in told(Json(), bad)
    assert "50 deep" in told(Json(), nested(51)) and DEEPEST_JSON == 50
    assert Json().read(([1],), "x", []) == ([1],) and is_read(Json(), "\ud7ff\ue000")


# --- records


def test_a_record_has_its_members_and_says_what_is_missing() -> None:
    kind = Record({"a": need(Flag()), "b": may(Flag()), "c": may(Flag(), None), "d": may(Integer(), 7)})
    assert kind.read({"a": True}, "x", []) == {"a": True, "c": None, "d": 7}
    assert kind.read({"a": True, "b": False, "c": True, "d": 1}, "x", []) == {"a": True, "b": False, "c": True, "d": 1}
    assert kind.read({"a": True, "c": None}, "x", [])["c"] is None
    assert told(kind, {}) == "the field is missing. Add a." and mistakes(kind, {})[0].field == "x.a"
    assert mistakes(kind, {}, "")[0].field == "a"
    assert [one.field for one in mistakes(kind, {"a": None, "b": None})] == ["x.a", "x.b"]
    assert kind.read({"a": 5, "d": 1}, "x", []) == {"c": None, "d": 1}
    assert told(kind, []) == "[] is not an object. Write the members a, b, c, d."
    assert is_read(Record({"a": need(Flag())}), {"a": True}) and not mistakes(Record({"a": may(Flag())}), {})


def test_an_unknown_member_is_told_where_it_belongs() -> None:
    kind = Record({"memory_mib": may(Flag()), "count": may(Flag())}, elsewhere={"gpu": "Write accelerator."})
    assert told(kind, {"gpu": 1}) == "there is no such field. Write accelerator."
    assert told(kind, {"memory": 1}) == "there is no such field. Was memory_mib meant?"
    assert told(Record({"mem_of_one_device": may(Flag())}), {"mem": 1}).endswith("Was mem_of_one_device meant?")
    assert told(kind, {5: 1}).startswith("there is no such field.") and mistakes(kind, {5: 1})[0].field == "x.5"


def test_long_values_are_shown_short() -> None:
    assert told(Flag(), "v" * 78).startswith("'" + "v" * 78 + "' is neither")  # 80 characters with its quotes
    assert told(Flag(), "v" * 79).startswith("'" + "v" * 76 + "… is neither")


def test_paths_and_repeated_names() -> None:
    assert (join("serving", "inputs"), join("", "model"), join("a", 3), join("", 3)) == (
        "serving.inputs",
        "model",
        "a.3",
        "3",
    )
    assert repeated(["a", "b", "a", "c", "b", "a"]) == ["a", "b", "a"] and repeated(["a", "b"]) == []
    assert Problem("f", "m", "x").as_json() == {"field": "f", "message": "m", "fix": "x"} and repr(INVALID) == "BAD"
