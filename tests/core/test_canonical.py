"""Canonical JSON against the vectors of RFC 8785, and the chain that is built on it."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.canonical import MAX_SAFE_INTEGER, canonical_bytes, digest_of, sha256_of
from ledger.core.chain import GENESIS, Link, storable, walk
from ledger.core.triggers import refuse_change

#: RFC 8785 appendix B: IEEE 754 bits → what ECMAScript prints.
NUMBERS = {
    "0000000000000000": "0", "8000000000000000": "0", "0000000000000001": "5e-324", "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308", "ffefffffffffffff": "-1.7976931348623157e+308", "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992", "4430000000000000": "295147905179352830000", "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23", "44b52d02c7e14af7": "1.0000000000000001e+23", "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000", "444b1ae4d6e2ef50": "1e+21", "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001", "41b3de4355555553": "333333333.3333332", "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333", "41b3de4355555556": "333333333.3333334", "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333", "43143ff3c1cb0959": "1424953923781206.2",
}  # fmt: skip

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize(("bits", "text"), sorted(NUMBERS.items()))
def test_numbers_are_printed_as_ecmascript_does(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_bytes(value) == text.encode()


def test_members_are_sorted_by_utf16_and_nothing_is_escaped_without_need() -> None:
    """The example of RFC 8785 section 3.2.3."""
    value = {"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
             "\U0001f600": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis"}  # fmt: skip
    assert list(json.loads(canonical_bytes(value))) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert canonical_bytes('\u20ac$\x0f\nA\'B"\\\\"/') == '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()


@pytest.mark.parametrize(("value", "says"), [
    (math.nan, r"\$: nan"), ({"a": [1, math.inf]}, r"\$\.a\[1\]: inf"), (2**53, "beyond 2\\^53-1"), ({1: 2}, "member names"),
    ({"a": {1}}, r"\$\.a: set has no JSON form"), ("\ud800", "lone surrogate"), (b"x", "bytes has no JSON form"),
])  # fmt: skip
def test_what_json_cannot_hold_exactly_is_refused_with_its_path(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        canonical_bytes(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([None, True, False], "[null,true,false]"),
        ([MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER], "[9007199254740991,-9007199254740991]"),
        ([1.5, 0.5, 0.25, 0.0, -0.5, 100.0], "[1.5,0.5,0.25,0,-0.5,100]"),
        ([1e22, 1.5e22, -1.25e-7], "[1e+22,1.5e+22,-1.25e-7]"),
        ({"a": {"b": [], "c": {}}, "d": [1, [2]]}, '{"a":{"b":[],"c":{}},"d":[1,[2]]}'),
    ],
)
def test_plain_values_have_the_one_form_that_everybody_writes(value: Any, text: str) -> None:
    assert canonical_bytes(value).decode() == text


@pytest.mark.parametrize("value", [MAX_SAFE_INTEGER + 1, -MAX_SAFE_INTEGER - 1])
def test_the_first_integer_that_a_double_cannot_tell_from_the_next_is_refused(value: int) -> None:
    assert float(abs(value)) == float(abs(value) + 1)
    with pytest.raises(ValueError, match="send it as a string"):
        canonical_bytes(value)


def _as_a_double_holds_it(digits: str) -> float:
    """ECMAScript prints a large double without a point, so its reader must not take it for an exact integer."""
    return int(digits) if abs(int(digits)) <= MAX_SAFE_INTEGER else float(digits)


@given(JSON_VALUES)
def test_canonical_bytes_read_back_as_the_same_value_and_bytes(value: Any) -> None:
    written = canonical_bytes(value)
    again = json.loads(written, parse_int=_as_a_double_holds_it)
    assert again == value
    assert canonical_bytes(again) == written


def test_a_digest_does_not_depend_on_how_the_value_was_written() -> None:
    assert digest_of({"b": 1.0, "a": [True]}) == digest_of({"a": (True,), "b": 1}) == sha256_of(b'{"a":[true],"b":1}')
    assert sha256_of(b"") == f"sha256:{hashlib.sha256(b'').hexdigest()}"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes() | st.binary() | st.decimals(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200)
@given(ANYTHING)
def test_anything_becomes_storable_and_stays_so(value: Any) -> None:
    kept = storable(value)
    canonical_bytes(kept)
    assert "\\u0000" not in json.dumps(kept)
    assert canonical_bytes(storable(kept)) == canonical_bytes(kept)


def link(seq: int, prev: str, **over: Any) -> Link:
    made = Link(seq=seq, at=datetime(2026, 5, 1, tzinfo=UTC), act_id="a", verb="route.set", subject_type="route", subject_id="1",
                actor="anna", from_state="", to_state="", reason="", facts={}, prev_hash=prev, **over)  # fmt: skip
    return replace(made, hash=made.expected_hash())


def test_a_hash_covers_the_instant_not_its_time_zone() -> None:
    one = link(1, GENESIS)
    assert replace(one, at=one.at.astimezone(timezone(timedelta(hours=5)))).expected_hash() == one.hash
    assert replace(one, at=one.at + timedelta(microseconds=1)).expected_hash() != one.hash


def test_a_walk_over_a_good_chain_finds_nothing() -> None:
    one = link(1, GENESIS)
    two = link(2, one.hash)
    report = walk([one, two], head_seq=2, head_hash=two.hash)
    assert (report.is_whole, report.events, report.head) == (True, 2, two.hash)


def test_a_walk_names_the_first_break() -> None:
    one = link(1, GENESIS)
    three = link(3, one.hash)
    report = walk([one, three], head_seq=3, head_hash=three.hash)
    assert (report.is_whole, report.broken_at, report.problem) == (
        False,
        3,
        "Between event 1 and event 3 something was deleted.",
    )


def test_a_trigger_that_refuses_change_has_a_way_back() -> None:
    forward, reverse = refuse_change("some_table", when="OLD.state = 'sealed'", message="it's 100% final")
    assert "BEFORE UPDATE OR DELETE ON some_table FOR EACH ROW WHEN (OLD.state = 'sealed')" in forward
    assert "'it''s 100%% final' USING ERRCODE = '23000'" in forward
    assert reverse.splitlines() == [
        "DROP TRIGGER some_table_refuses_update_delete ON some_table;", "DROP FUNCTION some_table_refuses_update_delete();",
    ]  # fmt: skip


def test_a_trigger_goes_before_its_function_whatever_it_refuses() -> None:
    forward, reverse = refuse_change("log", operations=("TRUNCATE",), message="no")
    assert "CREATE TRIGGER log_refuses_truncate_all BEFORE TRUNCATE ON log FOR EACH STATEMENT" in forward
    assert "FOR EACH ROW" not in forward
    assert reverse.splitlines() == [
        "DROP TRIGGER log_refuses_truncate_all ON log;", "DROP FUNCTION log_refuses_truncate();",
    ]  # fmt: skip
    both = refuse_change("log", operations=("DELETE", "TRUNCATE"), message="no")[1].splitlines()
    assert [line.split()[1] for line in both] == ["TRIGGER", "TRIGGER", "FUNCTION"]


@pytest.mark.parametrize(("table", "operations"), [("Robert'); --", ("UPDATE",)), ("t", ("SELECT",)), ("t", ())])
def test_a_trigger_on_nonsense_is_refused(table: str, operations: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="table name|operations must"):
        refuse_change(table, operations=operations, message="no")
