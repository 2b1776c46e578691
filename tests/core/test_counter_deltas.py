"""From cumulative counters to what happened in between."""

from __future__ import annotations

import json
from dataclasses import replace

from rollouts.core.counter_deltas import MOST_S, SLOTS, Counts, Reading, difference, has_lost


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


# --- requests are counted for the weight that they began under ---------------------------------------------------------


def under(slot: int, attempts: int, *, at: float = 0.0, answer_s: float = 0.0, **others: int) -> Reading:
    """With so many attempts under this slot's name, and under others', as `s2=70`."""
    stood = {one: others.get(f"s{one}", 0) for one in range(SLOTS) if one != slot}
    arms = {one: (Counts(count, count), Counts()) for one, count in stood.items()}
    return Reading("one", at, Counts(attempts, attempts), Counts(), slot=slot, others=arms, answer_s=answer_s)


def test_a_new_slot_counts_from_what_stood_under_its_name() -> None:
    """Labels come again: what was counted under this one long ago is not this weight's."""
    before, now = under(1, 500, s2=70), under(2, 75)
    assert difference(before, now).candidate.attempts == 5
    assert not has_lost(before, now)
    last = SLOTS - 1
    assert difference(under(last, 500, s0=70), under(0, 72)).candidate.attempts == 2  # they go round


def test_two_changes_between_two_readings_lose_nothing() -> None:
    """Somebody promotes at once, a moment after a step: what the middle weight counted is no evidence, and no gap either."""
    before, now = under(1, 500, s3=70), under(3, 90)
    assert difference(before, now).candidate.attempts == 20
    assert not has_lost(before, now)


def test_a_slot_that_was_never_read_counts_nothing_and_is_told() -> None:
    before, now = replace(under(1, 500), others={}), under(3, 90)
    assert difference(before, now).candidate == Counts()
    assert has_lost(before, now)
    assert difference(now, under(3, 97)).candidate.attempts == 7  # from here on it is known


def test_answers_come_steadily_some_time_after_a_change_of_weight() -> None:
    first = under(3, 0, at=100.0, answer_s=10.0).after(None)
    assert first.since == 100.0 and not first.is_settled
    later = under(3, 9, at=114.0, answer_s=10.0).after(first)
    assert later.since == 100.0 and not later.is_settled
    settled = under(3, 9, at=115.0, answer_s=10.0).after(later)
    assert settled.is_settled
    assert not under(0, 0, at=116.0, answer_s=10.0).after(settled).is_settled  # and again after the next
    assert under(0, 0, at=116.0, answer_s=0.25).after(settled).is_settled  # short answers cost no tick


def test_a_reading_survives_json() -> None:
    for one in (under(3, 7, s0=2, at=5.0, answer_s=1.5).after(None), under(0, 7)):
        assert Reading.from_json(json.loads(json.dumps(one.to_json()))) == one
    old = under(0, 7).to_json()
    del old["slot"]
    assert Reading.from_json(old) == under(0, 7)


def test_a_candidate_that_hangs_does_not_lengthen_its_own_grace() -> None:
    first = under(3, 0, at=100.0, answer_s=2.0).after(None)
    hanging = under(3, 9, at=103.0, answer_s=120.0).after(first)
    assert hanging.answer_s == 2.0 and hanging.is_settled
    unknown = under(3, 0, at=100.0).after(None)
    assert under(3, 9, at=103.0, answer_s=10.0).after(unknown).answer_s == 10.0  # now it is known


def test_no_answer_is_waited_for_longer_than_a_minute() -> None:
    """Streams stay open as long as they like."""
    first = under(3, 0, at=100.0, answer_s=600.0).after(None)
    assert not under(3, 0, at=100.0 + MOST_S - 1, answer_s=600.0).after(first).is_settled
    assert under(3, 0, at=100.0 + MOST_S, answer_s=600.0).after(first).is_settled


def test_a_gateway_that_began_anew_waits_as_long_as_before() -> None:
    first = under(3, 500, at=100.0, answer_s=5.0).after(None)
    anew = replace(under(3, 4, at=200.0), epoch="two").after(first)
    assert (anew.since, anew.answer_s) == (200.0, 5.0) and not anew.is_settled
    assert replace(under(3, 50, at=208.0), epoch="two").after(anew).is_settled
