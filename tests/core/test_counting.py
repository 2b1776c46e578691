"""From cumulative counters to what happened in between."""

from __future__ import annotations

from rollouts.core.counting import Counts, Reading, difference


def reading(attempts: int, slow: int = 0, *, epoch: str = "one") -> Reading:
    return Reading(epoch, 0.0, Counts(attempts, attempts, {"errors": 0, "slow_250ms": slow}), Counts(), attempts, 0)


def test_only_what_was_added_counts() -> None:
    found = difference(reading(1000, 10), reading(1100, 13))
    assert (found.candidate.attempts, found.candidate.routed, found.candidate.bad["slow_250ms"]) == (100, 100, 3)
    assert found.user_requests == 100


def test_the_past_of_a_gateway_that_was_never_read_is_not_this_rollouts() -> None:
    assert difference(None, reading(1000, 10)).candidate == Counts()


def test_a_gateway_that_restarted_counts_from_zero() -> None:
    assert difference(reading(1000, 10), reading(40, 1, epoch="two")).candidate.attempts == 40


def test_a_counter_that_falls_without_a_restart_counts_nothing_twice() -> None:
    assert difference(reading(1000, 10), reading(1100, 9)).candidate == Counts()
