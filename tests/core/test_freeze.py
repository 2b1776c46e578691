"""Freeze windows: by weekday, over midnight, by date; touching ones are one freeze."""

from __future__ import annotations

from datetime import UTC, date, datetime

from rollouts.core.freeze import FreezeWindow, frozen

FRIDAY = datetime(2026, 11, 20, tzinfo=UTC)


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


def test_a_weekly_window_holds_from_its_start_to_its_end() -> None:
    window = FreezeWindow(days=frozenset({4}), from_min=16 * 60, to_min=24 * 60)
    assert frozen([window], at(20, 15, 59)) is None
    assert frozen([window], at(20, 16)) == (window, at(21, 0))
    assert frozen([window], at(21, 0)) is None and frozen([window], at(19, 17)) is None


def test_a_window_over_midnight_belongs_to_the_day_it_begins_on() -> None:
    night = FreezeWindow(days=frozenset({4}), from_min=22 * 60, to_min=6 * 60)
    assert frozen([night], at(21, 5, 59)) == (night, at(21, 6))
    assert frozen([night], at(21, 6)) is None
    assert frozen([night], at(20, 5)) is None


def test_days_between_two_dates_both_within() -> None:
    year_end = FreezeWindow(first_day=date(2026, 12, 20), last_day=date(2027, 1, 2), why="Year end.")
    assert frozen([year_end], datetime(2026, 12, 19, 23, 59, tzinfo=UTC)) is None
    found = frozen([year_end], datetime(2026, 12, 20, tzinfo=UTC))
    assert found and found[1] > datetime(2026, 12, 20, 23, tzinfo=UTC)
    assert frozen([year_end], datetime(2027, 1, 3, tzinfo=UTC)) is None


def test_windows_that_touch_are_one_freeze() -> None:
    friday = FreezeWindow(days=frozenset({4}), from_min=16 * 60, to_min=24 * 60)
    weekend = FreezeWindow(days=frozenset({5, 6}))
    assert frozen([friday, weekend], at(20, 17)) == (friday, at(23, 0))


def test_another_zone_means_the_same_instant() -> None:
    window = FreezeWindow(days=frozenset({4}), from_min=16 * 60, to_min=24 * 60)
    from datetime import timedelta, timezone

    there = at(20, 16).astimezone(timezone(timedelta(hours=9)))
    assert frozen([window], there) == (window, at(21, 0))
