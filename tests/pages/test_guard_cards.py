"""A guard's card: the guard that rolled back stays as it decided, and what is still to wait for has a time."""

from __future__ import annotations

from typing import Any

from rollouts.core.timeline import Moment
from rollouts.queries.timeline import RATE_OVER_S, attempts_per_s
from web.pages.rollout_log import as_decided


def moment(at: float, attempts: int, *, step: int = 1, state: str = "shifting") -> Moment:
    return Moment(0, at, 1, state, step, 0.25, 0.25, 0.25, attempts, 0, 0, 0, 0, False, "hold")


def test_the_guard_that_rolled_back_shows_the_numbers_of_the_decision() -> None:
    guard: dict[str, Any] = {
        "name": "errors", "bad_candidate": 16, "candidate": 408, "fine_progress": 1.0, "worse_progress": 0.0, "is_fine": True,
    }  # fmt: skip
    decided = {"guard": "errors", "counter": "errors", "bad": 38, "attempts": 298, "bad_stable": 0, "stable": 0}
    shown = as_decided(guard, decided)
    assert shown["has_rolled_back"] and (shown["bad_candidate"], shown["candidate"]) == (38, 298)
    assert (shown["worse_progress"], shown["fine_progress"], shown["is_fine"]) == (1.0, 0.0, False)
    assert shown["rate_candidate"] == 38 / 298 and shown["rate_stable"] is None
    assert as_decided(guard, None) == guard and as_decided(guard, {**decided, "guard": "slow_250ms"}) == guard


def test_the_rate_is_that_of_the_present_stage_and_the_last_two_minutes() -> None:
    before = [moment(float(at), 100, step=0) for at in range(0, 300, 10)]
    now = [moment(300.0 + at, 40) for at in range(0, 300, 10)]
    assert attempts_per_s([*before, *now]) == 4.0
    assert RATE_OVER_S == 120.0
    assert attempts_per_s([]) is None and attempts_per_s(now[:1]) is None
