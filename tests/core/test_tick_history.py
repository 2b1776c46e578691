"""Ticks in blocks: nothing is lost in JSON, sums stay exact however coarse, and a stored rollout is judged again as it was."""

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
from rollouts.core.decision import Action
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, replay, uncounted, walk
from rollouts.core.tick_history import (
    BLOCK_ROWS,
    OpenSegment,
    Segment,
    TickContext,
    TickRecord,
    joined,
    rows_of,
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


# -- judged again ------------------------------------------------------------------------------------------------------


POLICY = parse_policy(
    {
        "preset": "demo",
        "steps": [{"weight_pct": w, "min_s": 5, "min_samples": 40, "deadline_s": 600} for w in (25, 50)],
        "bake": {"min_s": 5, "min_samples": 40, "deadline_s": 600},
        "guards": [{"indicator": "errors"}, {"indicator": "slow", "threshold_ms": 250}],
    }
)


def lived(error_frac: float, seed: int = 3, most: int = 200) -> tuple[list[Walk], list[TickRecord]]:
    """A rollout as the engine's own functions walk it, and what would have been stored of it."""
    draw, seen = random.Random(seed), {}

    def feed(tick: int, weight_bp: int) -> Arms | None:
        if tick > most:
            return None
        candidate = sum(draw.random() < weight_bp / 10_000 for _ in range(60))
        bad = sum(draw.random() < error_frac for _ in range(candidate))
        slow = dict.fromkeys(POLICY.guards[1].points, 0)
        one = Counts(candidate, candidate, {"errors": bad, **slow, "slow_250ms": draw.randrange(2)})
        seen[tick] = Arms(one, Counts(60 - candidate, 60 - candidate, {"errors": draw.randrange(2), **slow}))
        return seen[tick]

    walks = list(walk(POLICY, feed))
    rows, state, index, weight, began = [], "shifting", 0, POLICY.steps[0].weight_bp, 0.0
    for step in walks:
        mark = TickContext(state=state, step_index=index, weight_bp=weight, step_started_at=began)
        rows.append(TickRecord(mark, step.tick, float(step.tick), float(step.tick), seen[step.tick]))
        if (step.state, step.step_index, step.weight_bp) != (state, index, weight):
            state, index, weight, began = str(step.state), step.step_index, step.weight_bp, float(step.tick)
    return walks, rows


@pytest.mark.parametrize(("error_frac", "end"), [(0.0, Action.PROMOTE), (0.3, Action.ROLL_BACK)])
def test_a_stored_rollout_is_judged_again_as_it_was(error_frac: float, end: Action) -> None:
    walks, rows = lived(error_frac)
    again = list(replay(blocks_of(rows), POLICY))
    assert [one.tick for one in again] == [one.tick for one in walks]
    assert [(one.decision.action, one.decision.code) for one in again] == [
        (one.decision.action, one.decision.code) for one in walks
    ]
    assert [one.decision.facts["guards"] for one in again] == [one.decision.facts["guards"] for one in walks]
    assert again[-1].decision.action is end


def test_another_policy_judges_the_same_history_otherwise() -> None:
    _, rows = lived(0.3)
    no_shadow = {"sample_pct": 0, "min_s": 0, "min_samples": 1, "deadline_s": 1}
    strict = parse_policy({"preset": "careful", "shadow": no_shadow, "guards": [{"indicator": "errors"}]})
    assert not any(one.decision.action in {Action.ADVANCE, Action.BAKE} for one in replay(blocks_of(rows), strict))
    patient = replace(POLICY, alpha_roll_back=1e-300)
    assert not any(one.decision.action is Action.ROLL_BACK for one in replay(blocks_of(rows), patient))


def test_a_coarse_history_still_tells_good_from_bad() -> None:
    for error_frac, is_bad in ((0.0, False), (0.3, True)):
        _, rows = lived(error_frac)
        block, *others = blocks_of(rows)
        for other in others:
            block = joined(block, other)
        actions = {one.decision.action for one in replay([block], POLICY)}
        assert (Action.ROLL_BACK in actions) == is_bad


def test_a_row_that_the_engine_left_out_is_left_out_again() -> None:
    """A slow model: only failures have ended yet."""
    one = arms(8, 8, 30, slow_250ms=0)
    waits = [TickRecord(replace(SHIFTING, is_settling=True), n, float(n), float(n), one) for n in range(1, 13)]
    after = [TickRecord(SHIFTING, n, float(n), float(n), one) for n in range(13, 21)]
    *walks, last = replay(blocks_of([*waits, *after]), POLICY)
    waited = [one.decision for one in walks[: len(waits)]]
    assert {one.action for one in waited} == {Action.HOLD}
    assert [one.facts["guards"]["errors"]["log_e_worse"] for one in waited if "guards" in one.facts] == [0.0] * 12
    assert last.decision.action is Action.ROLL_BACK


def test_a_coarse_row_makes_no_evidence_of_what_was_none() -> None:
    """Blocks are joined until rows of both kinds would be one."""
    blinks = [one for n in range(1, 200) for one in ticks(1, first=n, is_settling=n <= 41, problem="stale" * (n % 2))]
    coarse = all_joined(blinks)
    assert len(coarse) <= 2 * BLOCK_ROWS and len({row.mark.is_settling for row in coarse}) == 2
    assert sum(row.ticks for row in coarse if row.mark.is_settling) == 41
    for odd in (0, 1):
        turns = [one for n in range(1, 200) for one in ticks(1, first=n, is_settling=n % 3 == odd)]
        assert all(row.mark.is_settling for row in all_joined(turns) if row.ticks >= 3)


def all_joined(rows: list[TickRecord]) -> list[TickRecord]:
    block, *others = blocks_of(rows)
    for other in others:
        block = joined(block, other)
    return back(block)


def test_what_was_never_counted_is_named() -> None:
    _, rows = lived(0.0, most=20)
    wanted = parse_policy(
        {
            "preset": "demo",
            "guards": [{"indicator": "errors"}, {"indicator": "slow", "threshold_ms": 500}, {"indicator": "wrong"}],
        }
    )
    assert uncounted(blocks_of(rows), POLICY) == ()
    assert {"slow_500ms", "wrong"} <= set(uncounted(blocks_of(rows), wanted))
