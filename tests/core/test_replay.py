"""A stored rollout is judged again as it was, and another policy says what it would have done."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.decision import Action
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, replay, uncounted, walk
from rollouts.core.tick_history import BLOCK_ROWS, TickContext, TickRecord, joined
from tests.core.test_tick_history import SHIFTING, all_joined, arms, blocks_of, ticks

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
