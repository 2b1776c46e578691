"""A stored rollout is judged again as it was, and another policy says what it would have done."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.decision import Action, Code
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, replay, uncounted, walk
from rollouts.core.tick_history import BLOCK_ROWS, TickContext, TickRecord, joined, rows_in
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
    again = list(replay(rows_in(blocks_of(rows)), POLICY))
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
    assert not any(
        one.decision.action in {Action.ADVANCE, Action.BAKE} for one in replay(rows_in(blocks_of(rows)), strict)
    )
    patient = replace(POLICY, alpha_roll_back=1e-300)
    assert not any(one.decision.action is Action.ROLL_BACK for one in replay(rows_in(blocks_of(rows)), patient))


def test_a_coarse_history_still_tells_good_from_bad() -> None:
    for error_frac, is_bad in ((0.0, False), (0.3, True)):
        _, rows = lived(error_frac)
        block, *others = blocks_of(rows)
        for other in others:
            block = joined(block, other)
        actions = {one.decision.action for one in replay(rows_in([block]), POLICY)}
        assert (Action.ROLL_BACK in actions) == is_bad


def test_a_row_that_the_engine_left_out_is_left_out_again() -> None:
    """A slow model: only failures have ended yet."""
    one = arms(8, 8, 30, slow_250ms=0)
    waits = [TickRecord(replace(SHIFTING, is_settling=True), n, float(n), float(n), one) for n in range(1, 13)]
    after = [TickRecord(SHIFTING, n, float(n), float(n), one) for n in range(13, 21)]
    *walks, last = replay(rows_in(blocks_of([*waits, *after])), POLICY)
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
    assert uncounted(rows_in(blocks_of(rows)), POLICY) == ()
    assert {"slow_500ms", "wrong"} <= set(uncounted(rows_in(blocks_of(rows)), wanted))


# -- edges -------------------------------------------------------------------------------------------------------------

NAMES = {name: 0 for guard in POLICY.guards for name in (guard.name, *guard.points)}
HEALTHY = Arms(Counts(1000, 1000, NAMES), Counts(3000, 3000, NAMES))  # at 25 %
ALONE = Arms(Counts(1000, 1000, NAMES), Counts(0, 0, NAMES))
BROKEN = Arms(Counts(1000, 1000, {**NAMES, "errors": 900}), Counts(0, 0, NAMES))


def test_a_walk_is_numbered_from_its_first_step_and_timed_by_the_length_of_its_ticks() -> None:
    """Each stage lasts 5 s at least: three ticks of 2 s. What came before the first step is not asked for."""
    asked: list[tuple[int, int]] = []

    def feed(tick: int, weight_bp: int) -> Arms:
        asked.append((tick, weight_bp))
        share = weight_bp // 10
        return Arms(Counts(share, share, NAMES), Counts(1000 - share, 1000 - share, NAMES))

    walks = list(walk(POLICY, feed, before=[HEALTHY] * 4, tick_s=2.0))
    weights = [2500] * 3 + [5000] * 3 + [9500] * 3
    assert asked == list(enumerate(weights, 1))
    assert [one.tick for one in walks] == list(range(1, 10))
    assert [one.decision.facts["elapsed_s"] for one in walks] == [2.0, 4.0, 6.0] * 3
    assert [(one.tick, str(one.state), one.step_index, one.weight_bp) for one in walks[2::3]] == [
        (3, "shifting", 1, 5000),
        (6, "baking", 1, 9500),
        (9, "baking", 1, 9500),
    ]
    assert walks[0].decision.facts["step_attempts"] == 250  # without what came before


def test_a_walk_without_a_stable_takes_all_in_one_step_and_ends_with_a_pause_where_it_breaks() -> None:
    good = list(walk(POLICY, lambda tick, weight_bp: ALONE, has_stable=False))
    assert [(str(one.state), one.weight_bp) for one in (good[0], good[-1])] == [
        ("shifting", 10_000),
        ("baking", 10_000),
    ]
    assert good[-1].decision.action is Action.PROMOTE and {one.step_index for one in good} == {0}
    bad = list(walk(POLICY, lambda tick, weight_bp: BROKEN, has_stable=False))
    assert [one.decision.action for one in bad].count(Action.PAUSE) == 1 and bad[-1].decision.action is Action.PAUSE


def replayed(rows: list[TickRecord], policy: Policy = POLICY, *, has_stable: bool = True) -> list[Walk]:
    return list(replay(rows_in(blocks_of(rows)), policy, has_stable=has_stable))


def row(tick: int, *, at: float | None = None, counts: Arms = HEALTHY, is_read: bool = True, **mark: Any) -> TickRecord:
    at = float(tick) if at is None else at
    return TickRecord(replace(SHIFTING, **mark), tick, at, at if is_read else None, counts if is_read else Arms())


def test_a_first_release_is_judged_again_without_a_stable() -> None:
    rows = [row(tick, counts=BROKEN, weight_bp=10_000) for tick in range(1, 6)]
    assert replayed(rows, has_stable=False)[-1].decision.code is Code.NO_ROLLBACK_TARGET
    assert replayed(rows)[-1].decision.code is not Code.NO_ROLLBACK_TARGET


def test_the_arm_that_a_row_calls_lost_is_gone_at_once() -> None:
    def code(lost: str) -> Code:
        first, then, after = replayed([row(1), row(2, counts=Arms(), lost=lost), row(3)])
        assert first.decision.code == after.decision.code == Code.NEED_MORE
        return then.decision.code

    assert [code(lost) for lost in ("", "candidate", "stable", "both")] == [
        Code.NEED_MORE,
        Code.SERVERS_GONE,
        Code.STABLE_GONE,
        Code.BOTH_ARMS_BAD,
    ]


def test_a_row_without_a_reading_is_blind_and_the_next_goes_on_from_the_one_before() -> None:
    rows = [row(1), row(2, is_read=False, problem="provider_down"), row(3)]
    seen = replayed(rows)
    assert seen[1].decision.code is Code.PROVIDER_DOWN
    assert [one.decision.facts["guards"]["errors"]["candidate"] for one in (seen[0], seen[2])] == [1000, 2000]


def test_samples_count_from_the_acknowledgement_of_each_weight() -> None:
    waits = {"is_acknowledged": False, "step_started_at": None}
    marks: list[dict[str, Any]] = [
        waits, waits, {"step_started_at": 3.0}, {"step_started_at": 3.0},
        {"step_index": 1, "weight_bp": 5000, "step_started_at": 5.0}, {"step_index": 1, "weight_bp": 5000, "step_started_at": 5.0},
    ]  # fmt: skip
    seen = replayed([row(tick, **mark) for tick, mark in enumerate(marks, 1)])
    assert ["acknowledge" in one.decision.reason for one in seen] == [True, True, False, False, False, False]
    assert [one.decision.facts["step_attempts"] for one in seen[2:]] == [0, 1000, 0, 1000]
    assert [one.decision.facts["elapsed_s"] for one in seen[2:]] == [0.0, 1.0, 0.0, 1.0]


def test_the_deadline_of_the_rollout_runs_from_its_first_row() -> None:
    assert POLICY.deadline_s == 900
    early, late = ([row(1, at=1000.0), row(2, at=1000.0 + after_s)] for after_s in (899.0, 900.0))
    assert "has lasted" not in replayed(early)[-1].decision.reason
    assert "has lasted 900 s" in replayed(late)[-1].decision.reason


def test_what_another_source_counted_row_by_row_is_added_up_from_the_first_row_on() -> None:
    policy = parse_policy({"preset": "demo", "guards": [{"indicator": "errors"}, {"indicator": "wrong"}]})
    wrong = {"wrong": Arms(Counts(10, bad={"wrong": 1}), Counts(30, bad={"wrong": 2}))}
    rows = [replace(row(tick), external={} if tick == 2 else wrong) for tick in range(1, 5)]
    found = [one.decision.facts["guards"]["wrong"] for one in replayed(rows, policy)]
    assert [(one["bad_candidate"], one["candidate"], one["bad_stable"], one["stable"]) for one in found] == [
        (1, 10, 2, 30), (1, 10, 2, 30), (2, 20, 4, 60), (3, 30, 6, 90),
    ]  # fmt: skip


def test_approvals_count_as_given_and_a_person_who_skipped_the_rest_still_does() -> None:
    asked = replace(POLICY, approvals={"step 2": 2})
    rows = [row(tick) for tick in range(1, 8)]
    assert replayed(rows, asked)[-1].decision.action is Action.ADVANCE
    assert replayed([row(1), row(2, state="baking", promote_now=True)])[-1].decision.code is Code.BY_HAND
