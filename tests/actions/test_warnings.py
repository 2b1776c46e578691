"""What people must hear of is said in time, however often a rollout changed its mind before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from rollouts.actions.tick_records import FREELY_SAID, WARNED_WITHIN_S, Tick, outcome_of
from rollouts.core.decision import Action, Code, Decision
from rollouts.core.engine_state import EngineState
from rollouts.core.tick_history import OpenSegment
from rollouts.models import Rollout

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def is_recorded(code: Code, *, after_s: float, **facts: Any) -> bool:
    """Whether the engine, having held for changing reasons for long, records this one so long after the last."""
    last = NOW - timedelta(seconds=after_s)
    tick = Tick(
        Rollout(pk=1), Mock(), EngineState(said="hold:need_more"), Mock(), Decision(Action.HOLD, code, "Holding.", facts),
        fence=1, at=NOW, number=9, history=OpenSegment(spoken=(FREELY_SAID + 30, last.timestamp())),
    )  # fmt: skip
    return outcome_of(tick).decision is not None


@pytest.mark.parametrize(("code", "facts"), [(Code.BLIND, {}), (Code.OVERDUE, {}), (Code.NEED_MORE, {"is_late": True})])
def test_a_warning_waits_for_minutes_at_most(code: Code, facts: dict[str, Any]) -> None:
    assert is_recorded(code, after_s=WARNED_WITHIN_S, **facts)
    assert not is_recorded(code, after_s=WARNED_WITHIN_S - 1, **facts)


def test_other_reasons_that_take_turns_wait_for_longer() -> None:
    assert not is_recorded(Code.NO_DATA, after_s=WARNED_WITHIN_S)
