"""Ticks in blocks: nothing is lost in JSON, and sums stay exact however coarse."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.tick_history import (
    BLOCK_ROWS,
    MOST_BLOCKS,
    OpenSegment,
    Segment,
    TickContext,
    TickRecord,
    joined,
    rows_of,
    stage_name,
    to_join,
)

SHIFTING = TickContext(state="shifting", step_index=0, weight_bp=2500, step_started_at=0.0)


def arms(candidate: int, bad: int = 0, stable: int = 0, **more: int) -> Arms:
    return Arms(
        Counts(candidate, candidate, {"errors": bad, **more}),
        Counts(stable, stable, {"errors": 0, **dict.fromkeys(more, 0)}),
    )


def filled(rows: list[TickRecord], block: OpenSegment | None = None) -> OpenSegment:
    block = block or OpenSegment()
    for row in rows:
        block = block.after(row)
    return block


def ticks(count: int, *, first: int = 1, seed: int = 1, **mark: Any) -> list[TickRecord]:
    draw = random.Random(seed)
    return [
        TickRecord(
            replace(SHIFTING, **mark), tick, 1000.0 + tick, 1000.0 + tick + 0.25,
            arms(draw.randrange(9), draw.randrange(3), draw.randrange(90), slow_250ms=draw.randrange(2)),
        )
        for tick in range(first, first + count)
    ]  # fmt: skip


def back(block: Segment) -> list[TickRecord]:
    """The rows after a way through JSON."""
    return list(rows_of(block.first_tick, block.from_at, json.loads(json.dumps(block.ticks))))


counts = st.builds(
    lambda attempts, routed, errors, slow: Counts(attempts, routed, {"errors": errors, "slow_250ms": slow}),
    *[st.integers(0, 10**9)] * 4,
)
marks = st.builds(
    TickContext,
    state=st.sampled_from(["shadowing", "shifting", "paused", "baking"]),
    step_index=st.integers(-1, 5),
    weight_bp=st.integers(0, 10_000),
    is_acknowledged=st.booleans(),
    problem=st.sampled_from(["", "stale", "provider_down"]),
    lost=st.sampled_from(["", "candidate", "both"]),
)
tellings = st.lists(
    st.tuples(marks, st.builds(Arms, counts, counts), st.booleans(), st.integers(1, 5000)), min_size=1, max_size=40
)


def told(telling: list[Any]) -> list[TickRecord]:
    at, rows = 1_900_000_000.0, []
    for tick, (mark, news, is_read, ms) in enumerate(telling, 7):
        at = round(at + ms / 1000, 3)
        external = {"wrong": Arms(Counts(tick, bad={"wrong": 1}), Counts(3, bad={"wrong": 0}))} if tick % 3 == 0 else {}
        rows.append(TickRecord(mark, tick, at, at - 0.125 if is_read else None, news, external))
    return rows


@given(tellings)
def test_what_is_stored_is_what_was_seen(telling: list[Any]) -> None:
    rows = told(telling)
    found = back(filled(rows).block())
    assert [(one.mark, one.tick, one.arms, one.external, one.ticks) for one in found] == [
        (one.mark, one.tick, one.arms, one.external, 1) for one in rows
    ]
    for one, row in zip(found, rows, strict=True):
        assert one.at == pytest.approx(row.at, abs=0.002)
        assert (one.read_at is None) == (row.read_at is None)
        assert row.read_at is None or one.read_at == pytest.approx(row.read_at, abs=0.003)


@given(tellings, st.integers(0, 40))
def test_an_engine_that_takes_over_fills_the_same_block(telling: list[Any], at: int) -> None:
    rows = told(telling)
    half = filled(rows[:at], OpenSegment(spoken=(2, 5.0)))
    again = OpenSegment.from_json(json.loads(json.dumps(half.to_json())))
    whole, other = filled(rows[at:], again), filled(rows, OpenSegment(spoken=(2, 5.0)))
    assert whole.block().arms == other.block().arms and whole.problem == other.problem
    assert back(whole.block()) == back(other.block())
    assert (whole.spoken, whole.rows) == ((2, 5.0), len(rows))
    assert whole.stored() == OpenSegment(spoken=(2, 5.0))


def test_a_quiet_tick_is_short() -> None:
    quiet = [TickRecord(SHIFTING, tick, 1000.0 + tick, 1000.0 + tick, arms(0)) for tick in range(1, 16)]
    assert len(json.dumps(filled(quiet).block().ticks)) < 600


def test_names_that_come_later_are_told_where_they_come() -> None:
    rows = [TickRecord(SHIFTING, 1, 1.0, 1.0, Arms()), *ticks(2, first=2)]
    found = back(filled(rows).block())
    assert found[0].arms == Arms() and [one.arms for one in found[1:]] == [one.arms for one in rows[1:]]


# -- coarser -----------------------------------------------------------------------------------------------------------


def blocks_of(rows: list[TickRecord], size: int = BLOCK_ROWS) -> list[Segment]:
    return [filled(rows[i : i + size]).block() for i in range(0, len(rows), size)]


def test_joining_keeps_every_sum_and_stays_short() -> None:
    rows = ticks(64 * BLOCK_ROWS)
    block, *others = blocks_of(rows)
    for other in others:
        block = joined(block, other)
        assert len(back(block)) <= 2 * BLOCK_ROWS
    found = back(block)
    total = Arms()
    for row in rows:
        total = total + row.arms
    assert block.arms == total == sum((one.arms for one in found[1:]), found[0].arms)
    assert sum(one.ticks for one in found) == len(rows) == block.length
    assert (block.first_tick, block.tick, block.from_at, block.at) == (1, len(rows), rows[0].at, rows[-1].at)
    assert [one.tick for one in found] == sorted({one.tick for one in found}) and found[-1].tick == block.tick
    assert found[-1].at == pytest.approx(block.at, abs=0.002)


def test_weights_and_blind_times_outlast_joining() -> None:
    early, late = ticks(40, weight_bp=500), ticks(40, first=41, weight_bp=2500)
    early[20] = replace(early[20], mark=replace(early[20].mark, problem="stale"), read_at=None)
    block, *others = blocks_of([*early, *late])
    for other in others:
        block = joined(block, other)
    found = back(block)
    assert sum(one.ticks for one in found if one.mark.weight_bp == 500) == 40
    assert any(one.mark.problem == "stale" for one in found if one.mark.weight_bp == 500)
    assert not any(one.mark.problem for one in found if one.mark.weight_bp == 2500)


def test_not_even_a_rollout_that_is_blind_every_other_tick_grows() -> None:
    rows = [replace(row, mark=replace(row.mark, problem="stale" if i % 2 else "")) for i, row in enumerate(ticks(900))]
    block, *others = blocks_of(rows)
    for other in others:
        block = joined(block, other)
        assert len(back(block)) <= 2 * BLOCK_ROWS
    assert sum(one.ticks for one in back(block)) == 900


@pytest.mark.slow
def test_a_week_of_blocks_stays_fine_where_it_is_young() -> None:
    kept: list[tuple[int, int]] = []
    most, week = 120, 604_800
    for first in range(1, week, BLOCK_ROWS):
        kept.append((first, first + BLOCK_ROWS - 1))
        if len(kept) > most + 16:
            for start, stop in reversed(to_join(kept, most)):
                kept[start : stop + 1] = [(kept[start][0], kept[stop][1])]
            assert len(kept) == most
    assert [later[0] - earlier[1] for earlier, later in pairwise(kept)] == [1] * (len(kept) - 1)
    for first, last in kept:
        age = week - last
        assert last - first + 1 <= max(2 * BLOCK_ROWS, 0.25 * age), (first, last)
    assert to_join(kept[:1], most) == [] and to_join([], most) == []


def all_joined(rows: list[TickRecord]) -> list[TickRecord]:
    block, *others = blocks_of(rows)
    for other in others:
        block = joined(block, other)
    return back(block)


# -- edges -------------------------------------------------------------------------------------------------------------


def test_what_nobody_told_holds_for_no_stage() -> None:
    assert {name: value for name, value in vars(TickContext()).items() if value} == {
        "step_index": -1,
        "is_acknowledged": True,
        "look": 1,
    }
    empty = vars(OpenSegment())
    assert {name: value for name, value in empty.items() if value} == {"arms": Arms(), "spoken": (0, 0.0)}
    assert OpenSegment.from_json({}) == OpenSegment()
    assert OpenSegment.from_json({"spoken": [3, 5], "began_at": 7.0}) == OpenSegment(spoken=(3, 5.0), began_at=7.0)
    assert TickRecord(SHIFTING, 1, 1.0).ticks == 1


def test_a_row_as_it_is_stored() -> None:
    """[ticks, ms since the block began, ms to the reading, candidate's, stable's, what is counted elsewhere], no zeros at its end."""
    wrong = {"wrong": Arms(Counts(6, bad={"wrong": 2}), Counts(5))}
    rows = [
        TickRecord(SHIFTING, 1, 1000.0, 1009.5, Arms(Counts(8, 9, {"errors": 3}), Counts(4, 4))),
        TickRecord(SHIFTING, 2, 1020.25, 1020.0, Arms()),
        TickRecord(SHIFTING, 3, 1021.0, 1021.0, Arms(Counts(1))),
        TickRecord(SHIFTING, 4, 1022.0, None, Arms(), wrong),
    ]
    first, *lists = filled(rows).block().ticks
    assert first["names"] == ["errors"] and first["weight_bp"] == 2500
    assert set(first) == {"names", "state", "step_index", "weight_bp", "step_started_at"}
    assert lists == [
        [1, 0, 9500, 8, 9, 3, 4, 4],
        [1, 20250, -250],
        [1, 21000, 0, 1],
        [1, 22000, None, {"wrong": [6, 2, 5, 0]}],
    ]
    assert [row.external for row in back(filled(rows).block())][-1]["wrong"].stable == Counts(5, bad={"wrong": 0})


def test_only_what_changed_is_told_again() -> None:
    later = replace(SHIFTING, problem="stale", weight_bp=5000)
    rows = [TickRecord(mark, tick, float(tick)) for tick, mark in enumerate((SHIFTING, SHIFTING, later, later), 1)]
    block = filled(rows)
    assert [one for one in block.ticks if isinstance(one, dict)][1:] == [{"problem": "stale", "weight_bp": 5000}]
    assert filled([*rows, TickRecord(SHIFTING, 5, 5.0)]).problem == "stale"  # it was blind somewhere in the block


@pytest.mark.parametrize(
    ("state", "paused_in", "name"),
    [
        ("shifting", "", "shifting:1:2500"),
        ("paused", "shifting", "shifting:1:2500"),
        ("baking", "", "baking"),
        ("paused", "baking", "baking"),
        ("shadowing", "", "shadowing"),
    ],
)
def test_evidence_belongs_to_the_same_step_before_and_after_a_pause(state: str, paused_in: str, name: str) -> None:
    assert stage_name(state, paused_in, 1, 2500) == name


def coarse(*rows: TickRecord, is_passing: bool = False) -> list[TickRecord]:
    """These rows ahead of so many that neighbours become one: alike ones, or those that a state passes through."""
    last, alike = rows[-1].tick, replace(SHIFTING, weight_bp=9999)
    marks = [alike, replace(alike, promote_now=is_passing)] * 20
    filling = [TickRecord(mark, last + n, 1000.0 + last + n) for n, mark in enumerate(marks, 1)]
    return back(joined(filled(list(rows)).block(), filled(filling).block()))


def test_blocks_of_up_to_thirty_rows_are_joined_as_they_are() -> None:
    rows = ticks(31)
    assert len(back(joined(filled(rows[:15]).block(), filled(rows[15:30]).block()))) == 30
    assert len(back(joined(filled(rows[:15]).block(), filled(rows[15:31]).block()))) == 16
    assert (BLOCK_ROWS, MOST_BLOCKS) == (15, 500)


def test_two_ticks_in_one_row_add_up_and_keep_the_later_reading() -> None:
    def row(tick: int, read_at: float | None, **external: int) -> TickRecord:
        counted = {name: Arms(Counts(n, bad={name: 1}), Counts(1, bad={name: 0})) for name, n in external.items()}
        return TickRecord(SHIFTING, tick, 1000.0 + tick, read_at, arms(tick, 1), counted)

    one, *_ = coarse(row(1, 1000.5, wrong=4, other=9), row(2, 1001.5, wrong=5, third=2))
    assert (one.ticks, one.tick, one.at, one.read_at) == (2, 2, 1002.0, 1001.5)
    assert one.arms == arms(3, 2)
    assert {name: (found.candidate.attempts, found.candidate.bad[name]) for name, found in one.external.items()} == {
        "wrong": (9, 2),
        "other": (9, 1),
        "third": (2, 1),
    }
    blind, *_ = coarse(row(1, 1000.5), row(2, None))
    assert blind.read_at == pytest.approx(1000.5)
    _, pair, *_ = coarse(*[row(n, None) for n in (1, 2, 3, 4)])
    assert (pair.tick, pair.ticks, pair.read_at) == (4, 2, None)


@pytest.mark.parametrize(
    ("first", "then", "told"), [("", "", ""), ("stale", "", "stale"), ("", "stale", "stale"), ("stale", "gone", "gone")]
)
def test_a_row_of_two_ticks_tells_the_last_problem_of_them(first: str, then: str, told: str) -> None:
    """And what else holds at its end."""
    marks = (replace(SHIFTING, problem=first, lost="candidate"), replace(SHIFTING, problem=then, promote_now=True))
    rows = [TickRecord(mark, tick, 1000.0 + tick) for tick, mark in enumerate(marks, 1)]
    one, *_ = coarse(*rows, is_passing=True)
    assert (one.ticks, one.mark.problem, one.mark.lost, one.mark.promote_now) == (2, told, "", True)


@pytest.mark.parametrize(
    ("most", "runs"),
    [(5, []), (4, [(0, 1)]), (3, [(0, 2)]), (2, [(0, 3)]), (1, [(0, 4)]), (0, [(0, 4)])],
)
def test_the_oldest_blocks_of_like_length_are_joined_first(most: int, runs: list[tuple[int, int]]) -> None:
    """Lengths beside ages of the later: at first 20/31, 20/21, 20/11, 20/1; then 30/21 beside 20/11."""
    alike = [(1, 10), (11, 20), (21, 30), (31, 40), (41, 50)]
    assert to_join(alike, most) == runs


def test_a_long_old_block_waits_for_short_younger_ones() -> None:
    """70/41, 21/40, 2/39: together beside the age of the later one."""
    blocks = [(1, 50), (51, 70), (71, 71), (72, 72), (73, 110)]
    assert to_join(blocks, 4) == [(2, 3)]
    assert to_join([(1, 2), (3, 100), (101, 102), (103, 104)], 3) == [(2, 3)]
    assert to_join([(1, 10), (11, 60), (61, 70)], 2) == [(0, 1)]
    assert to_join([(1, 5), (6, 7)], 1) == [(0, 1)]
