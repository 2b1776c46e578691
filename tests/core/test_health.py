"""Slow is not dead: what a row of looks at a server says of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from serving.core.health import (
    HUNG_AFTER_LAST_STABLE_S,
    HUNG_AFTER_S,
    Health,
    HealthTracker,
    Probe,
    ProbeResult,
    verdict,
)

H, P = Health, Probe


def healths(looks: Iterable[ProbeResult], hung_after_s: float = 10.0) -> list[Health]:
    watch, found = HealthTracker(), []
    for look in looks:
        watch = watch.after(look)
        found.append(verdict(watch, look, hung_after_s=hung_after_s))
    return found


def late(sent_at: float, finished: int | None, took_s: float = 2.0) -> ProbeResult:
    return ProbeResult(P.LATE, sent_at, sent_at + took_s, finished)


def quick(*probes: Probe) -> list[ProbeResult]:
    return [ProbeResult(probe, float(n), n + 0.1) for n, probe in enumerate(probes)]


def test_right_answers_are_well() -> None:
    assert healths(quick(P.RIGHT, P.RIGHT)) == [H.WELL, H.WELL]


@pytest.mark.parametrize("before", [[], [P.RIGHT], [P.LATE]])
def test_what_is_gone_is_dead_at_once(before: list[Probe]) -> None:
    assert healths(quick(*before, P.GONE))[-1] == H.DEAD


def test_one_wrong_answer_is_forgiven_and_two_in_a_row_are_not() -> None:
    assert healths(quick(P.WRONG, P.RIGHT, P.WRONG, P.WRONG)) == [H.WELL, H.WELL, H.WELL, H.BROKEN]


def test_a_late_probe_between_two_wrong_ones_hides_nothing() -> None:
    assert healths(quick(P.WRONG, P.LATE, P.WRONG)) == [H.WELL, H.SLOW, H.BROKEN]


def test_a_late_server_that_finishes_something_is_slow_for_ever() -> None:
    looks = [late(n * 4.0, finished=n // 2) for n in range(100)]  # one inference in 8 s
    assert set(healths(looks)) == {H.SLOW}


def test_a_late_server_that_finishes_nothing_is_hung_when_the_window_is_over() -> None:
    looks = [late(at, finished=7) for at in (0.0, 2.0, 4.0, 6.0, 8.0)]
    assert healths(looks) == [H.SLOW] * 4 + [H.HUNG]
    assert set(healths(looks, hung_after_s=30.0)) == {H.SLOW}


def test_the_window_begins_anew_with_whatever_finishes() -> None:
    looks = [late(0.0, 7), late(4.0, 7), late(8.0, 8), late(12.0, 8), late(16.0, 8), late(18.0, 8)]
    assert healths(looks) == [H.SLOW] * 5 + [H.HUNG]  # seen to move at 10, quiet until 20


def test_a_right_answer_begins_anew() -> None:
    looks = [late(0.0, 7), late(6.0, 7), ProbeResult(P.RIGHT, 8.0, 8.1), late(9.0, 8), late(15.0, 8)]
    assert healths(looks) == [H.SLOW, H.SLOW, H.WELL, H.SLOW, H.SLOW]


def test_counts_that_begin_again_are_progress_too() -> None:
    """A model that was loaded anew counts from zero."""
    assert healths([late(0.0, 900), late(9.0, 3)]) == [H.SLOW, H.SLOW]


def test_counts_that_cannot_be_read_are_no_progress() -> None:
    looks = [late(at, None) for at in (0.0, 4.0, 8.0)]
    assert healths(looks) == [H.SLOW, H.SLOW, H.HUNG]


def test_one_unreadable_count_does_not_hide_what_finished_meanwhile() -> None:
    assert healths([late(0.0, 7), late(4.0, None), late(9.0, 8)]) == [H.SLOW] * 3


def test_an_agent_that_was_away_blames_nobody_for_the_gap() -> None:
    assert healths([ProbeResult(P.RIGHT, 0.0, 0.1), late(500.0, 7)]) == [H.WELL, H.SLOW]


def test_only_hung_broken_and_dead_are_lost() -> None:
    assert {one for one in Health if one.is_lost} == {H.HUNG, H.BROKEN, H.DEAD}


def test_the_last_stable_server_gets_longer() -> None:
    """A window is well above the 2 s of an attempt; the last stable server's true hang lasts 20 s longer, and no more."""
    assert HUNG_AFTER_S >= 10 and HUNG_AFTER_LAST_STABLE_S == HUNG_AFTER_S + 20


def test_a_server_that_answers_is_quiet_for_no_time() -> None:
    assert HealthTracker().quiet_s(1000.0) == 0
    assert HealthTracker().after(late(4.0, finished=7)).quiet_s(10.5) == 6.5


def test_a_server_is_hung_at_the_very_end_of_its_window_and_not_before() -> None:
    looks = [late(0.0, 7), late(7.9, 7), late(8.0, 7)]
    assert healths(looks) == [H.SLOW, H.SLOW, H.HUNG]
