"""Slow is not dead: what a row of looks at a server says of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from serving.targets.core.health import (
    AWAY_S,
    HUNG_AFTER_LAST_STABLE_S,
    HUNG_AFTER_S,
    LONGEST_PAUSE_S,
    PROBE_SHARE,
    Health,
    HealthTracker,
    Probe,
    ProbeResult,
    Timeouts,
    verdict,
    why_hung,
)

H, P = Health, Probe
TIMEOUTS = Timeouts.of(silent_s=10.0, request_s=10.0)


def healths(looks: Iterable[ProbeResult], timeouts: Timeouts = TIMEOUTS) -> list[Health]:
    watch, found = HealthTracker(), []
    for look in looks:
        watch = watch.after(look)
        found.append(verdict(watch, look, timeouts))
    return found


def late(sent_at: float, finished: int | None, took_s: float = 2.0, *, is_live: bool | None = True) -> ProbeResult:
    return ProbeResult(P.LATE, sent_at, sent_at + took_s, finished, is_live)


def held(
    sent_at: float,
    *,
    is_live: bool | None,
    finished: int | None = None,
    took_s: float = 2.0,
    cost_s: float | None = None,
) -> ProbeResult:
    return ProbeResult(P.HELD, sent_at, sent_at + took_s, finished, is_live, cost_s)


def quick(*probes: Probe) -> list[ProbeResult]:
    return [ProbeResult(probe, float(n), n + 0.1) for n, probe in enumerate(probes)]


def test_right_answers_are_well() -> None:
    assert healths(quick(P.RIGHT, P.RIGHT)) == [H.WELL, H.WELL]


@pytest.mark.parametrize("before", [[], [P.RIGHT], [P.LATE], [P.HELD]])
def test_what_is_gone_is_dead_at_once(before: list[Probe]) -> None:
    assert healths(quick(*before, P.GONE))[-1] == H.DEAD


def test_one_wrong_answer_is_forgiven_and_two_in_a_row_are_not() -> None:
    assert healths(quick(P.WRONG, P.RIGHT, P.WRONG, P.WRONG)) == [H.WELL, H.WELL, H.WELL, H.BROKEN]


def test_a_late_probe_between_two_wrong_ones_hides_nothing() -> None:
    assert healths(quick(P.WRONG, P.LATE, P.WRONG)) == [H.WELL, H.SLOW, H.BROKEN]


# past every deadline


def test_a_late_server_that_finishes_something_is_slow_for_ever() -> None:
    looks = [late(n * 4.0, finished=n // 2) for n in range(100)]  # one inference in 8 s
    assert set(healths(looks)) == {H.SLOW}


def test_a_late_server_that_finishes_nothing_is_hung_when_every_deadline_has_passed() -> None:
    looks = [late(at, finished=7) for at in (0.0, 2.0, 4.0, 6.0, 8.0)]
    assert healths(looks) == [H.SLOW] * 4 + [H.HUNG]
    assert set(healths(looks, Timeouts.of(silent_s=10.0, request_s=11.0))) == {H.SLOW}


def test_only_an_inference_that_nobody_answers_proves_it() -> None:
    """A server without a request finishes nothing either."""
    looks = [late(0.0, 7), *(held(at, is_live=True, finished=7) for at in (4.0, 10.0, 20.0)), late(24.0, 7)]
    assert healths(looks) == [H.SLOW] * 4 + [H.HUNG]


def test_a_short_deadline_makes_no_slow_server_hung() -> None:
    assert Timeouts.of(silent_s=30.0, request_s=1.0) == Timeouts(30.0, 30.0)
    assert Timeouts.of(silent_s=10.0, request_s=600.0) == Timeouts(10.0, 600.0)


def test_the_window_begins_anew_with_whatever_finishes() -> None:
    looks = [late(0.0, 7), late(4.0, 7), late(8.0, 8), late(12.0, 8), late(16.0, 8), late(18.0, 8), late(20.0, 8)]
    assert healths(looks) == [H.SLOW] * 6 + [H.HUNG]  # the oldest probe that surely waits was sent at 12


def test_a_finished_request_may_be_the_probe_so_that_the_server_is_idle_after_it() -> None:
    looks = [late(0.0, 7), held(8.0, is_live=True, finished=8, cost_s=9.0), late(60.0, 8)]
    assert healths(looks) == [H.SLOW] * 3


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


# frozen


def test_a_process_that_does_not_answer_whether_it_is_live_is_frozen_after_its_window() -> None:
    looks = [late(0.0, None, is_live=False), *(held(at, is_live=False) for at in (3.0, 6.0, 8.0))]
    assert healths(looks, Timeouts.of(silent_s=10.0, request_s=600.0)) == [H.SLOW] * 3 + [H.HUNG]
    assert set(healths(looks, Timeouts.of(silent_s=30.0, request_s=600.0))) == {H.SLOW}


def test_one_answer_to_the_liveness_call_begins_anew() -> None:
    looks = [held(0.0, is_live=False), held(6.0, is_live=True), held(9.0, is_live=False), held(15.0, is_live=False)]
    assert healths(looks) == [H.SLOW, H.WELL, H.SLOW, H.SLOW]


def test_one_unanswered_call_is_no_freeze_however_long_the_agent_was_stopped_in_it() -> None:
    assert healths([held(0.0, is_live=False, took_s=500.0)]) == [H.SLOW]


def test_the_freeze_is_dated_from_the_last_answer_if_that_was_just_before() -> None:
    well = ProbeResult(P.RIGHT, 0.0, 0.1)
    assert HealthTracker().after(well).after(held(1.0, is_live=False)).silent_since == 0.1
    assert HealthTracker().after(well).after(held(500.0, is_live=False)).silent_since == 500.0


def test_the_silence_of_a_server_that_computes_on_its_event_loop_says_nothing() -> None:
    looks = [late(0.0, None, is_live=None), *(held(at, is_live=None) for at in range(4, 590, 4))]
    assert set(healths(looks, Timeouts.of(silent_s=10.0, request_s=600.0))) == {H.SLOW}


def test_a_hung_server_is_lost_for_a_reason_that_names_the_evidence() -> None:
    frozen = HealthTracker().after(held(0.0, is_live=False)).after(held(8.0, is_live=False))
    assert why_hung(frozen, 10.0, TIMEOUTS) == "for 10 s its process did not answer whether it is live"
    said = why_hung(HealthTracker().after(late(0.0, 7)), 120.0, Timeouts(10.0, 120.0))
    assert said == "for 120 s it answered no probe and finished nothing, and a request to it may take 120 s"


# the agent itself


def test_an_agent_that_was_away_blames_nobody_for_the_gap() -> None:
    assert healths([ProbeResult(P.RIGHT, 0.0, 0.1), late(500.0, 7)]) == [H.WELL, H.SLOW]
    assert healths([late(0.0, 7), late(500.0, 7)]) == [H.SLOW, H.SLOW]
    just = [late(0.0, 7), late(AWAY_S, 7)]  # from the end of one to the end of the next
    assert healths(just) == [H.SLOW, H.HUNG]


def test_only_hung_broken_and_dead_are_lost() -> None:
    assert {one for one in Health if one.is_lost} == {H.HUNG, H.BROKEN, H.DEAD}


def test_the_last_stable_server_gets_longer() -> None:
    """A freeze of the last stable server lasts 20 s longer, and no more."""
    assert HUNG_AFTER_S == 10 and HUNG_AFTER_LAST_STABLE_S == 30


def test_a_server_that_answers_is_quiet_for_no_time() -> None:
    assert HealthTracker().quiet_s(1000.0) == HealthTracker().silent_s(1000.0) == 0
    assert HealthTracker().after(late(4.0, finished=7)).quiet_s(10.5) == 6.5


def test_a_server_is_hung_at_the_very_end_of_its_window_and_not_before() -> None:
    looks = [late(0.0, 7), late(7.9, 7), late(8.0, 7)]
    assert healths(looks) == [H.SLOW, H.SLOW, H.HUNG]


# how often an inference is sent


def test_the_pauses_between_inferences_of_a_busy_server_grow() -> None:
    watch, at, gaps = HealthTracker(), 0.0, []
    for _ in range(8):
        watch = watch.after(late(at, 7))
        gaps.append(watch.pause_s)
        at += 2 + watch.pause_s
    assert gaps == [4, 8, 16, 32, 64, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    moved = watch.after(held(at, is_live=True, finished=8, cost_s=0.1))
    assert moved.pause_s == pytest.approx(0.9) and moved.is_probe_due(at + 2, Timeouts(10.0, 600.0))
    assert watch.after(held(at, is_live=True, finished=8)).pause_s == LONGEST_PAUSE_S  # its cost is unknown


def test_an_inference_is_due_when_every_deadline_has_passed_and_never_while_it_is_frozen() -> None:
    timeouts, watch = Timeouts(10.0, 30.0), HealthTracker()
    for at in (0.0, 6.0, 16.0):  # pauses of 4, 8 and 16 s
        watch = watch.after(late(at, 7))
    assert not watch.is_probe_due(29.9, timeouts) and watch.is_probe_due(30.0, timeouts)
    assert not watch.after(held(20.0, is_live=False)).is_probe_due(1000.0, timeouts)


def test_probes_take_a_tenth_of_a_slow_server_and_a_fast_one_is_asked_at_every_look() -> None:
    slow = HealthTracker().after(ProbeResult(P.RIGHT, 0.0, 60.0))
    assert slow.pause_s == pytest.approx(60 / PROBE_SHARE - 60)
    assert not slow.is_probe_due(100.0, TIMEOUTS) and slow.is_probe_due(600.1, TIMEOUTS)
    queued = HealthTracker().after(ProbeResult(P.RIGHT, 0.0, 0.01)).after(ProbeResult(P.RIGHT, 1.0, 2.4))
    assert queued.pause_s < 1  # its wait behind others is no cost of its own
    assert HealthTracker().after(ProbeResult(P.RIGHT, 0.0, 60.0)).after(quick(P.WRONG)[0]).pause_s == 0
