"""Recorded rollouts as their plots show them: evidence tick by tick, as the engine's own functions judge it."""

from __future__ import annotations

import json
from pathlib import Path

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import replay
from rollouts.core.tick_history import OpenSegment, Segment, TickContext, TickRecord, rows_in
from rollouts.core.timeline import Moment, Timeline
from web.pages.rollout_figures import Guard, Story, evidence_plot, traffic_plot
from web.plots import Mark

HERE = Path(__file__).parent
BEGAN = 1_000_000.0


def blocks_of(name: str, *, gap: range = range(0), rows: int | None = None) -> tuple[list[Segment], Policy]:
    """The history's first step as stored blocks; the ticks of `gap` could not be read."""
    head, *counted = [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]
    policy = parse_policy(head["policy"], head["objectives"])
    mark = TickContext(state="shifting", step_index=0, weight_bp=policy.steps[0].weight_bp, step_started_at=BEGAN)
    blocks: list[Segment] = []
    block = OpenSegment()
    for tick, row in enumerate(counted[:rows], 1):
        at, candidate, stable = BEGAN + tick, row[:3], row[3:]
        arms = Arms(*(Counts(n, n, {"errors": errors, "slow_250ms": slow}) for n, errors, slow in (candidate, stable)))
        is_blind = tick in gap
        block = block.after(TickRecord(mark, tick, at, None if is_blind else at, Arms() if is_blind else arms))
        if tick % 15 == 0:
            blocks, block = [*blocks, block.block()], block.stored()
    return [*blocks, *([block.block()] if block.rows else [])], policy


def moments_of(name: str, *, gap: range = range(0), rows: int | None = None) -> tuple[list[Moment], Guard]:
    """Every tick of it, and the guard on slow requests."""
    blocks, policy = blocks_of(name, gap=gap, rows=rows)
    whole = Timeline(policy, has_stable=True).extended(blocks)
    guard = next(one for one in policy.guards if one.indicator == "slow")
    return whole.moments, Guard(guard.name, guard.words, policy.bar_worse_of(guard), policy.bar_fine)


def test_a_slow_release_passes_its_bar_where_the_plot_says() -> None:
    moments, guard = moments_of("slow_tail")
    first = next(one for one in moments if one.action == "roll_back")
    judged = [(one.tick, one.evidence[guard.name]) for one in moments if one.evidence]
    over = next(tick for tick, found in judged if max(found.worse, found.over) >= guard.bar_worse)
    assert over <= first.tick <= over + 5
    story = Story("r2", "r1", BEGAN, (Mark(first.tick, "decided", "bad"),))
    plot = evidence_plot(story, guard, moments)
    assert (
        "reached its bar" in plot.caption
        and "decided" in plot.svg
        and f"roll back at {guard.bar_worse:.2f}" in plot.svg
    )
    assert [moments[0].weight, moments[-1].acknowledged] == [0.1, 0.1] and 0.05 < (moments[-1].observed or 0) < 0.25
    assert sum(one.attempts for one in moments) > 100 and "100" not in traffic_plot(story, moments).columns


def test_what_could_not_be_read_is_a_gap_in_every_line() -> None:
    moments, guard = moments_of("healthy", gap=range(20, 30), rows=60)
    assert [one.tick for one in moments if one.is_blind] == list(range(20, 30))
    plot = traffic_plot(Story("r2", "r1", BEGAN), moments)
    observed = [row[3] for row in plot.rows]
    assert observed[19:29] == ["–"] * 10 and "–" not in observed[:19]
    assert [row[4] for row in plot.rows][19:29] == ["–"] * 10  # attempts: unknown, not zero
    evidence = evidence_plot(Story("r2", "r1", BEGAN), guard, moments)
    assert (
        any(row[1] == "–" for row in evidence.rows) and "Nothing is proven" in evidence.caption
    ) or "fine" in evidence.caption


def test_rows_that_were_walked_by_a_replay_make_the_same_moments() -> None:
    blocks, policy = blocks_of("short_incident", rows=150)
    rows = list(rows_in(blocks))
    walked = Timeline(policy, has_stable=True).with_walks(rows, replay(rows, policy))
    assert walked.moments == moments_of("short_incident", rows=150)[0] and any(one.evidence for one in walked.moments)


def test_a_replay_that_ends_at_a_crossing_has_the_moments_until_then() -> None:
    blocks, _ = blocks_of("slow_tail")
    head = json.loads((HERE / "slow_tail.jsonl").read_text().splitlines()[0])
    policy = parse_policy({**head["policy"], "second_look": {"looks": 2, "after_s": 30}}, head["objectives"])
    rows = list(rows_in(blocks))
    walks = list(replay(rows, policy))
    moments = Timeline(policy, has_stable=True).with_walks(rows, walks).moments
    assert [one.tick for one in moments] == [one.tick for one in rows[: len(walks)]] and len(walks) < len(rows)
    assert moments[-1].action == "withdraw"


def test_a_timeline_that_grows_is_as_one_that_was_walked_at_once() -> None:
    at_once, _ = moments_of("short_incident", rows=150)
    blocks, policy = blocks_of("short_incident", rows=150)
    grown = Timeline(policy, has_stable=True).extended(blocks[:4])
    longer = grown.copied().extended(blocks[4:])
    assert longer.moments == at_once and len(grown.moments) == 60  # who extends a copy leaves the first as it was
