"""What a walk over the log says of every way to change it, and which form facts are kept in."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest

from ledger.core.canonical import MAX_SAFE_INTEGER
from ledger.core.chain import GENESIS, ChainReport, Link, storable, walk


def sealed(one: Link) -> Link:
    return replace(one, hash=one.expected_hash())


def chain(count: int, first: str = "") -> list[Link]:
    """`count` events, each pointing to the one before; `first` is the reason that the first one states."""
    links: list[Link] = []
    for seq in range(1, count + 1):
        links.append(
            sealed(
                Link(
                    *(seq, datetime(2026, 5, 1, tzinfo=UTC), "act", "route.set", "route", "7", "anna", "", ""),
                    reason=first if seq == 1 else "",
                    facts={},
                    prev_hash=links[-1].hash if links else GENESIS,
                )
            )
        )
    return links


def walked(links: list[Link], noted: list[Link] | None = None, **more: Any) -> ChainReport:
    """A walk over `links`, where the head that was noted is that of `noted`."""
    last = (noted or links)[-1]
    return walk(links, head_seq=last.seq, head_hash=last.hash, **more)


def kinds(report: ChainReport) -> list[tuple[int, str]]:
    return [(one.seq, one.kind) for one in report.breaks]


def test_an_empty_log_is_whole_and_begins_with_64_zeros() -> None:
    report = walk([], head_seq=0, head_hash="0" * 64)
    assert report == ChainReport(0, "0" * 64) and report.head_seq == 0
    assert report.is_whole and report.broken_at is None and report.problem == ""


def test_an_edit_shows_at_its_event_alone_and_with_its_hash_made_right_at_the_next() -> None:
    links = chain(4)
    edited = replace(links[1], actor="mallory")
    assert kinds(walked([links[0], edited, *links[2:]])) == [(2, "edited")]
    assert kinds(walked([links[0], sealed(edited), *links[2:]])) == [(3, "reordered")]


def test_a_log_that_lost_its_end_or_whose_last_event_was_rewritten() -> None:
    links = chain(3)
    short = walked(links[:2], noted=links)
    assert kinds(short) == [(2, "truncated")]
    assert short.problem == "The log ends at event 2, but event 3 was the last one written."
    other = walked([*links[:2], sealed(replace(links[2], actor="mallory"))], noted=links)
    assert kinds(other) == [(3, "edited")]
    assert other.problem == "Event 3 is the last one, but another text was written there."
    gone = walked(links[1:])
    assert kinds(gone) == [(2, "missing")] and gone.events == 2


def test_a_log_that_was_rewritten_whole_differs_from_what_was_noted_elsewhere() -> None:
    links, rewritten = chain(3), chain(3, first="another")
    assert walked(rewritten).is_whole
    for seq in (1, 2, 3):
        pin = (seq, links[seq - 1].hash)
        assert walked(links, pin=pin).is_whole
        assert kinds(walked(rewritten, pin=pin)) == [(seq, "rewritten")]


def test_what_was_noted_elsewhere_and_is_not_in_the_log_was_cut_off() -> None:
    links = chain(4)
    report = walked(links[:3], pin=(4, links[3].hash))
    assert kinds(report) == [(3, "truncated")]
    assert report.problem == "Event 4 was noted elsewhere, and the log has no such event."
    assert walked(links, pin=(0, GENESIS)).is_whole, "nothing had been written when it was noted"
    assert kinds(walked(links, pin=(0, "f" * 64))) == [(4, "truncated")]


@pytest.mark.parametrize(("given", "told"), [({}, 20), ({"most_breaks": 3}, 3)])
def test_no_more_than_so_many_breaks_are_told(given: dict[str, int], told: int) -> None:
    links = [replace(one, actor="mallory") for one in chain(30)]
    report = walked(links, **given)
    assert kinds(report) == [(seq, "edited") for seq in range(1, told + 1)]
    assert report.events == 30 and report.head_seq == 30


#: The largest double below 10^308 stays a number, as does every integer that a double can hold.
HUGE = 10**308 - 10**293


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        (True, True),
        (False, False),
        (MAX_SAFE_INTEGER, MAX_SAFE_INTEGER),
        (-MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER),
        (MAX_SAFE_INTEGER + 1, float(2**53)),
        (-(10**20), -1e20),
        (HUGE, float(HUGE)),
        (10**308, "1" + "0" * 308),
        (10**309, "1" + "0" * 309),
        (0.5, 0.5),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        ("a\x00b", "a\ufffdb"),
        ({1: (2, [3])}, {"1": [2, [3]]}),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({2, 1}), [1, 2]),
        (datetime(2026, 5, 1, 12, tzinfo=UTC), "2026-05-01T12:00:00+00:00"),
        (date(2026, 5, 1), "2026-05-01"),
        (ValueError("no"), "no"),
    ],
)
def test_facts_are_kept_as_json_holds_them_exactly(given: Any, kept: Any) -> None:
    found = storable(given)
    assert found == kept and type(found) is type(kept)
