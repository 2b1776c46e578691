"""What is kept of a tick: what people must hear of is recorded in time, however often a rollout changed its mind before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.decision import Action, Code, Decision
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import RolloutState
from rollouts.core.tick import FREELY_RECORDED, WARNED_WITHIN_S, Outcome, Tick, outcome_of
from rollouts.core.tick_history import BLOCK_ROWS, OpenSegment, TickContext, TickRecord
from tests.core.test_decide import snapshot
from tests.support.worlds.snapshots import changed

NOW = 1_772_323_200.0


def tick(decision: Decision, *, number: int = 9, history: OpenSegment | None = None, last: str = "") -> Tick:
    """The tick of a rollout at 25 %, whose identifier is 1."""
    record = TickRecord(TickContext(str(RolloutState.SHIFTING), 1, 2500), number, NOW)
    seen = snapshot(now=NOW, rollout_id=1)
    return Tick(number, seen, decision, EngineState(last_decision=last), history or OpenSegment(), record)


def is_recorded(code: Code, *, after_s: float, **facts: Any) -> bool:
    """Whether the engine, having held for changing reasons for long, records this one so long after the last."""
    history = OpenSegment(spoken=(FREELY_RECORDED + 30, NOW - after_s))
    hold = Decision(Action.HOLD, code, "Holding.", **facts)
    return outcome_of(tick(hold, history=history, last="hold:need_more")).is_recorded


@pytest.mark.parametrize(("code", "facts"), [(Code.BLIND, {}), (Code.OVERDUE, {}), (Code.NEED_MORE, {"is_late": True})])
def test_a_warning_waits_for_minutes_at_most(code: Code, facts: dict[str, Any]) -> None:
    assert is_recorded(code, after_s=WARNED_WITHIN_S, **facts)
    assert not is_recorded(code, after_s=WARNED_WITHIN_S - 1, **facts)


def test_other_reasons_that_take_turns_wait_for_longer() -> None:
    assert not is_recorded(Code.NO_DATA, after_s=WARNED_WITHIN_S)


HOLD = Decision(Action.HOLD, Code.NEED_MORE, "Holding.")


def test_the_same_hold_again_is_quiet_until_its_block_is_full() -> None:
    kept = [outcome_of(tick(HOLD, number=number, last="hold:need_more")) for number in range(BLOCK_ROWS)]
    assert [number for number, one in enumerate(kept) if not one.is_quiet] == [
        BLOCK_ROWS - 1
    ]  # (tick + rollout) % rows
    full = kept[-1]
    assert full.block is not None and full.block.tick == BLOCK_ROWS - 1 and full.history.rows == 0
    assert kept[0].history.rows == 1 and not full.is_recorded


def test_an_effect_is_recorded_and_sets_the_count_of_holds_back() -> None:
    history = OpenSegment(spoken=(7, NOW - 5.0))
    held = outcome_of(tick(HOLD, history=history))
    assert (held.history.spoken, held.engine_state.last_decision) == ((8, NOW), "hold:need_more")
    promote = Decision(Action.PROMOTE, Code.PROVEN, "Promoting.")
    done: Outcome = outcome_of(tick(promote, history=history, last="promote:proven"))
    assert done.is_recorded and done.block is not None and done.engine_state.is_promoting
    assert done.history.spoken == (0, NOW)


def test_each_hold_for_another_reason_waits_twice_as_long_after_the_first_24() -> None:
    def is_said(count: int, after_s: float) -> bool:
        history = OpenSegment(spoken=(count, NOW - after_s))
        return outcome_of(tick(HOLD, history=history, last="hold:no_data")).is_recorded

    assert is_said(23, 0.0) and not is_said(24, 0.0)
    for count, wait_s in ((24, 60.0), (25, 120.0), (26, 240.0), (34, 61_440.0), (35, 86_400.0), (9000, 86_400.0)):
        assert is_said(count, wait_s) and not is_said(count, wait_s - 1)


@pytest.mark.parametrize(
    ("code", "facts", "last", "warning"),
    [
        (Code.BLIND, {}, "", "rollout.blind"),
        (Code.BLIND, {}, "hold:blind", ""),  # said already
        (Code.OVERDUE, {}, "", "rollout.overdue"),
        (Code.NEED_MORE, {"is_late": True}, "hold:need_more", "rollout.overdue"),
        (Code.NEED_MORE, {"is_late": True}, "hold:need_more:late", ""),
        (Code.CONFOUNDED, {"guard": "errors"}, "", "rollout.held"),
        (Code.BOTH_ARMS_BAD, {}, "", ""),  # no guard was breached
        (Code.NO_DATA, {"guard": "wrong"}, "", ""),
    ],
)
def test_people_are_warned_once_of_what_moves_nothing(
    code: Code, facts: dict[str, Any], last: str, warning: str
) -> None:
    assert tick(Decision(Action.HOLD, code, "Holding.", **facts), last=last).warning == warning
    assert tick(Decision(Action.ADVANCE, code, "Advancing.", **facts), last=last).warning == ""


def test_what_is_promoting_stays_so_and_nothing_else_begins_it() -> None:
    promote = tick(Decision(Action.PROMOTE, Code.PROVEN, "Promoting."))
    assert outcome_of(promote).engine_state.is_promoting
    again = replace(promote, engine_state=EngineState(is_promoting=True))
    assert outcome_of(again).engine_state.is_promoting
    assert not outcome_of(tick(HOLD)).engine_state.is_promoting


def test_before_any_traffic_a_tick_is_decided_and_not_kept_as_an_observation() -> None:
    one = tick(HOLD)
    preparing = replace(one, snapshot=changed(one.snapshot, state=RolloutState.PREPARING))
    kept = outcome_of(preparing)
    assert kept.is_recorded and kept.block is None and kept.history.rows == 0
    taking_back = replace(one, snapshot=changed(one.snapshot, state=RolloutState.ROLLING_BACK))
    assert outcome_of(taking_back).block is not None


def test_a_tick_tells_when_it_was_and_whether_it_first_saw_the_acknowledgement() -> None:
    one = tick(HOLD)
    assert one.at.timestamp() == NOW and one.acked_at is None
    assert replace(one, snapshot=changed(one.snapshot, is_newly_acknowledged=True)).acked_at == one.at
