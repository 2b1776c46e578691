"""Freeze windows: by weekday, over midnight, by date; touching ones are one freeze."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pytest

from rollouts.core.freeze import FreezeWindow, frozen, in_words, stretches, uncovered, zone_of, zones_like

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


# time zones


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


def berlin(begin: str, end: str, **days: object) -> FreezeWindow:
    (from_h, from_m), (to_h, to_m) = (map(int, one.split(":")) for one in (begin, end))
    return FreezeWindow(from_min=60 * from_h + from_m, to_min=60 * to_h + to_m, time_zone="Europe/Berlin", **days)  # type: ignore[arg-type]


def test_friday_afternoon_is_that_of_the_zone_in_summer_and_in_winter() -> None:
    window = berlin("16:00", "24:00", days=frozenset({4}))
    assert window.on(date(2026, 7, 3)) == (utc(2026, 7, 3, 14), utc(2026, 7, 3, 22))
    assert window.on(date(2026, 11, 27)) == (utc(2026, 11, 27, 15), utc(2026, 11, 27, 23))
    assert frozen([window], utc(2026, 7, 3, 13, 59)) is None and frozen([window], utc(2026, 7, 3, 14))
    assert frozen([window], utc(2026, 11, 27, 14, 59)) is None and frozen([window], utc(2026, 11, 27, 15))


def test_the_day_of_a_window_is_the_zones_own() -> None:
    """At 20:00 UTC it is Saturday in Auckland already."""
    saturday = FreezeWindow(days=frozenset({5}), time_zone="Pacific/Auckland")
    assert frozen([saturday], utc(2026, 11, 27, 20)) == (saturday, utc(2026, 11, 28, 11))
    assert frozen([saturday], utc(2026, 11, 28, 12)) is None
    kiritimati = FreezeWindow(first_day=date(2026, 12, 25), last_day=date(2026, 12, 25), time_zone="Pacific/Kiritimati")
    assert frozen([kiritimati], utc(2026, 12, 24, 10)) == (kiritimati, utc(2026, 12, 25, 10))


@pytest.mark.parametrize(
    ("begin", "end", "wanted"),
    [
        ("01:00", "02:30", (utc(2026, 3, 29, 0), utc(2026, 3, 29, 1))),  # ends at the skip
        ("02:30", "04:00", (utc(2026, 3, 29, 1), utc(2026, 3, 29, 2))),  # begins at the skip
        ("02:10", "02:50", None),  # the clock shows none of it
        ("01:00", "04:00", (utc(2026, 3, 29, 0), utc(2026, 3, 29, 2))),
        ("00:00", "24:00", (utc(2026, 3, 28, 23), utc(2026, 3, 29, 22))),  # 23 hours
    ],
)
def test_in_spring_a_window_begins_or_ends_at_the_skip(
    begin: str, end: str, wanted: tuple[datetime, datetime] | None
) -> None:
    assert berlin(begin, end).on(date(2026, 3, 29)) == wanted


@pytest.mark.parametrize(
    ("begin", "end", "wanted"),
    [
        ("02:30", "04:00", (utc(2026, 10, 25, 0, 30), utc(2026, 10, 25, 3))),  # from the first 02:30
        ("01:00", "02:30", (utc(2026, 10, 24, 23), utc(2026, 10, 25, 1, 30))),  # to the second 02:30
        ("02:10", "02:50", (utc(2026, 10, 25, 0, 10), utc(2026, 10, 25, 1, 50))),
        ("00:00", "24:00", (utc(2026, 10, 24, 22), utc(2026, 10, 25, 23))),  # 25 hours
    ],
)
def test_in_autumn_a_window_holds_both_times(begin: str, end: str, wanted: tuple[datetime, datetime]) -> None:
    window = berlin(begin, end)
    assert window.on(date(2026, 10, 25)) == wanted
    middle = wanted[0] + (wanted[1] - wanted[0]) / 2
    found = frozen([window], middle)
    assert found and found[1] >= wanted[1]


def test_a_skip_of_half_an_hour_and_one_of_a_day() -> None:
    lord_howe = FreezeWindow(from_min=2 * 60 + 10, to_min=4 * 60, time_zone="Australia/Lord_Howe")
    assert lord_howe.on(date(2026, 10, 4)) == (utc(2026, 10, 3, 15, 30), utc(2026, 10, 3, 17))
    assert FreezeWindow(time_zone="Pacific/Apia").on(date(2011, 12, 30)) is None


def test_days_of_a_zone_touch_at_every_change_of_its_clock() -> None:
    for zone in ("Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Asia/Beirut", "UTC"):
        window = FreezeWindow(time_zone=zone)
        found = frozen([window], utc(2026, 1, 1))
        assert found and found[1] > utc(2026, 12, 1), zone
        (whole,) = stretches([window], utc(2026, 1, 1), utc(2026, 12, 31))
        assert whole.begins_at <= utc(2026, 1, 1) and whole.ends_at >= utc(2026, 12, 31)


def test_windows_of_two_zones_that_touch_are_one_freeze_with_both_times() -> None:
    first = berlin("16:00", "18:00", days=frozenset({4}), why="Berlin")
    second = FreezeWindow(frozenset({4}), 9 * 60, 12 * 60, why="Chicago", time_zone="America/Chicago")
    day = utc(2026, 11, 27)
    (freeze,) = stretches([first, second], day, day + timedelta(days=1))
    assert (freeze.begins_at, freeze.ends_at) == (utc(2026, 11, 27, 15), utc(2026, 11, 27, 18))
    assert freeze.local_words == [
        "Fri 2026-11-27 16:00 to Fri 2026-11-27 19:00 in Europe/Berlin",
        "Fri 2026-11-27 09:00 to Fri 2026-11-27 12:00 in America/Chicago",
    ]


def test_an_end_is_told_in_both_times() -> None:
    assert in_words(berlin("16:00", "24:00"), utc(2026, 11, 27, 23)) == (
        "2026-11-27 23:00 UTC (2026-11-28 00:00 in Europe/Berlin)"
    )
    assert in_words(FreezeWindow(), utc(2026, 11, 27, 23)) == "2026-11-27 23:00 UTC"


@pytest.mark.parametrize("name", ["Berlin", "Europe", "../etc/passwd", "localtime", "right/UTC", "", "/UTC", "CEST"])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name or "^$"):
        zone_of(name)


def test_a_name_that_is_almost_a_zone_has_a_suggestion() -> None:
    assert zones_like("berlin") == ["Europe/Berlin"] and zones_like("new york") == ["America/New_York"]
    assert zones_like("europe/BERLIN") == ["Europe/Berlin"] and zones_like("nowhere") == []


def test_a_system_without_the_database_has_the_packages_own() -> None:
    code = "from rollouts.core.freeze import zone_of; import zoneinfo; print(zoneinfo.TZPATH, zone_of('Europe/Berlin'))"
    environment = {"PYTHONTZPATH": "", "PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert ended.stdout == "() Europe/Berlin\n", ended.stderr


FRIDAYS = frozenset({4})
YEAR_END = {"first_day": date(2026, 12, 20), "last_day": date(2027, 1, 3)}


@pytest.mark.parametrize(
    ("window", "others", "is_covered"),
    [
        (FreezeWindow(FRIDAYS, 960), [FreezeWindow(FRIDAYS)], True),
        (FreezeWindow(FRIDAYS, 960), [FreezeWindow(FRIDAYS, 961)], False),
        (FreezeWindow(FRIDAYS, 960, 1200), [FreezeWindow(FRIDAYS, 900, 1199)], False),
        (FreezeWindow(FRIDAYS, 960), [FreezeWindow(FRIDAYS, 900, 1200), FreezeWindow(FRIDAYS, 1201, 30)], False),
        # over midnight: only an equal window is known to cover it
        (FreezeWindow(FRIDAYS, 1320, 120), [FreezeWindow(FRIDAYS, 1320, 120, why="Night")], True),
        (FreezeWindow(FRIDAYS, 1320, 120), [FreezeWindow(FRIDAYS)], False),
        (FreezeWindow(FRIDAYS, 1320), [FreezeWindow(FRIDAYS, 1320, 120)], False),
        (FreezeWindow(), [FreezeWindow(frozenset(range(6)))], False),
        (FreezeWindow(why="One"), [FreezeWindow(why="Other")], True),
        (FreezeWindow(), [], False),
        (FreezeWindow(FRIDAYS), [FreezeWindow(FRIDAYS, first_day=date(2020, 1, 1), last_day=date(2035, 1, 1))], False),
        (FreezeWindow(FRIDAYS), [FreezeWindow(FRIDAYS, first_day=date(2030, 1, 1))], False),
        (FreezeWindow(**YEAR_END), [FreezeWindow()], True),
        (FreezeWindow(**YEAR_END), [FreezeWindow(**{**YEAR_END, "last_day": date(2027, 1, 2)})], False),
        (FreezeWindow(FRIDAYS, time_zone="Europe/Berlin"), [FreezeWindow(FRIDAYS)], False),
    ],
)
def test_what_other_windows_leave_open(window: FreezeWindow, others: list[FreezeWindow], is_covered: bool) -> None:
    assert uncovered([window], others) == ([] if is_covered else [window])
