"""How the ticks of a rollout are stored: in blocks, which join as they grow old and are judged again as the engine judged them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rollouts import actions
from rollouts.actions import tick_records
from rollouts.actions.tick_records import join_old_blocks
from rollouts.core import tick as core_tick
from rollouts.core.decision import Action
from rollouts.core.engine_state import EngineState
from rollouts.core.replay import replay
from rollouts.core.tick_history import BLOCK_ROWS, OpenSegment, rows_in, rows_of
from rollouts.engine.timings import EngineLimits
from rollouts.models import DecisionRecord, Observation, Rollout
from rollouts.queries.replay import block_of
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.worlds.rollout_crowd import World

pytestmark = pytest.mark.django_db(transaction=True)


def blocks(rollout: Rollout) -> list[Observation]:
    return list(rollout.observations.order_by("first_tick"))


def test_ticks_are_stored_in_blocks_and_the_open_one_with_the_rollout() -> None:
    world = World()
    world.until_shifting()
    (rollout,) = world.rollouts
    for _ in range(2 * BLOCK_ROWS):
        world.turn()
    for _ in range(2 * BLOCK_ROWS):  # at which ticks blocks end depends on the rollout's number
        world.turn()
        if world.engine.cache.known[rollout.pk].history.rows == 3:
            break
    stored = blocks(rollout)
    spans = [(one.first_tick, one.tick) for one in stored]
    assert all(later[0] == earlier[1] + 1 for earlier, later in pairwise(spans))
    assert max(last - first + 1 for first, last in spans) == BLOCK_ROWS
    half = OpenSegment.from_json(rollout.engine_state["history"])
    assert half.rows == 3 and half.first_tick == spans[-1][1] + 1 and half.tick == rollout.tick
    summed = sum(one.candidate["attempts"] for one in stored) + half.arms.candidate.attempts
    assert summed == EngineState.from_json(rollout.engine_state).total.candidate.attempts
    assert set(stored[-1].evidence) == {"errors", "slow_250ms", "refused"} and stored[-1].state == "shifting"
    for one in stored:
        rows = list(rows_of(one.first_tick, one.from_at.timestamp(), one.ticks))
        assert sum(row.arms.stable.attempts for row in rows) == one.stable["attempts"]
        assert [row.tick for row in rows] == list(range(one.first_tick, one.tick + 1))


def test_a_new_decision_ends_a_block() -> None:
    world = World()
    world.until_shifting()
    for _ in range(3):
        world.turn()
    world.fake_of(world.rollouts[0]).fail("timeout")
    world.turn()
    world.turn()
    (rollout,) = world.rollouts
    decided = DecisionRecord.objects.filter(rollout=rollout).latest("pk")
    # the last block, unless the tick after it was that at which this rollout stores one anyway
    assert (decided.tick, "provider_down") in {(one.tick, one.problem) for one in blocks(rollout)[-2:]}


def test_old_blocks_join_into_coarser_ones_and_nothing_is_lost() -> None:
    world = World()
    world.until_shifting()
    for _ in range(8 * BLOCK_ROWS):
        world.engine.step()
        if world.engine.cache.known[world.rollouts[0].pk].rollout.tick % 7 == 0:
            world.traffic(30)
    (rollout,) = world.rollouts
    before = blocks(rollout)
    total = sum(one.stable["attempts"] for one in before)
    left = join_old_blocks(rollout, fence=world.engine.token or 0, most=4)
    after = blocks(rollout)
    assert left == len(after) == 4 < len(before)
    assert (after[0].first_tick, after[-1].tick) == (before[0].first_tick, before[-1].tick)
    assert all(later.first_tick == earlier.tick + 1 for earlier, later in pairwise(after))
    assert sum(one.stable["attempts"] for one in after) == total
    assert after[-1].pk == before[-1].pk  # the youngest stays as it was
    assert max(len(one.ticks) for one in after) <= 2 * BLOCK_ROWS + 4  # rows, and what changed between them
    world.engine.step()


def test_the_engine_joins_blocks_by_itself() -> None:
    world = World(engine={"limits": EngineLimits(most_blocks=3, blocks_over=1)})
    world.until_shifting()
    for _ in range(7 * BLOCK_ROWS):
        world.engine.step()
    assert world.rollouts[0].observations.count() <= 4


def test_an_engine_that_was_fenced_out_joins_nothing() -> None:
    world = World()
    world.until_shifting()
    with pytest.raises(Exception, match="Another engine"):
        join_old_blocks(world.rollouts[0], fence=0)


def test_reasons_that_take_turns_for_days_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_tick, "FREELY_RECORDED", 6)
    world = World()
    world.until_shifting()
    (rollout,) = world.rollouts
    fake = world.fake_of(rollout)
    for i in range(30):
        fake.fail("timeout" if i % 2 else None)
        world.turn()
    holds = DecisionRecord.objects.filter(rollout=rollout, action="hold")
    assert holds.count() <= 8
    assert ("gateway-0" in rollout.reason) == bool(29 % 2)  # what the row says is always the truth of now
    fake.fail(None)
    version = rollout.version
    actions.pause(actor=world.admin, rollout=rollout, expected_version=version, reason="Lunch.")
    world.turn()
    fake.set_arm(str(rollout.candidate.digest), is_up=False)
    for _ in range(3):
        world.turn()
    assert rollout.state == "rolling_back"  # effects are always on record
    assert DecisionRecord.objects.filter(rollout=rollout, action="roll_back").count() == 1


def test_a_stored_rollout_is_judged_again_as_the_engine_judged_it() -> None:
    world = World(steps=[{"weight_pct": w, "min_s": 0, "min_samples": 40, "deadline_s": 600} for w in (25, 50)])
    (rollout,) = world.rollouts
    for i in range(60):
        if i == 12:
            world.fake_of(rollout).set_arm(str(rollout.candidate.digest), error_frac=0.3)
        world.turn(200)
        if rollout.state == "rolled_back":
            break
    assert rollout.state == "rolled_back"
    told = {
        one.tick: (one.action, one.code)
        for one in DecisionRecord.objects.filter(rollout=rollout, actor=tick_records.ENGINE.name)
    }
    again = {
        walk.tick: (walk.decision.action.value, walk.decision.code.value)
        for walk in replay(rows_in([block_of(one) for one in blocks(rollout)]), rollout.effective_policy)
    }
    shared = sorted(set(told) & set(again))
    assert {tick: again[tick] for tick in shared} == {tick: told[tick] for tick in shared}
    assert {Action.ADVANCE.value, Action.ROLL_BACK.value} <= {told[tick][0] for tick in shared}
