"""A freeze window as JSON: its form, its mistakes, and the value that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from registry.core.schema import ListOf, Problem, Record, Text, may
from rollouts.core.freeze import DAYS, FreezeWindow, zone_of, zones_like

_CLOCK = Text(
    5,
    pattern=r"([01]\d|2[0-3]):[0-5]\d|24:00",
    like="16:30",
    says="a time of day",
    rule="hours and minutes from 00:00 to 24:00, in quotes",
)
_ZONE = Text(
    60,
    pattern=r"[A-Za-z][A-Za-z0-9_+/-]*",
    like="Europe/Berlin",
    says="a time zone",
    rule="a name of the IANA time zone database",
)
_DAY = Text(10, pattern=r"\d{4}-\d\d-\d\d", like="2026-12-20", says="a day", rule="year, month and day as YYYY-MM-DD")
WINDOW = Record(
    {
        "days": may(ListOf(Text(one_of=DAYS, says="a day of the week"), least=1, most=7), list(DAYS)),
        "from": may(_CLOCK, "00:00"),
        "to": may(_CLOCK, "24:00"),
        "first_day": may(_DAY, None),
        "last_day": may(_DAY, None),
        "why": may(Text(200), ""),
        "time_zone": may(_ZONE),  # left out, a window is in UTC, and its policy keeps the digest that it had
    }
)


def window_problems(windows: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Mistakes that the form of a window cannot refuse: unknown zones, days that no calendar has, and days in the wrong order."""
    problems = []
    for i, window in enumerate(windows):
        name = window.get("time_zone", "UTC")
        try:
            zone_of(name)
        except ValueError:
            names = " or ".join(zones_like(name)[:3]) or "an IANA name, such as Europe/Berlin or UTC"
            problems.append(
                Problem(f"freeze_windows[{i}].time_zone", f"there is no time zone {name!r}.", f"Write {names}.")
            )
        try:
            days = [window[name] and date.fromisoformat(window[name]) for name in ("first_day", "last_day")]
        except ValueError:
            problems.append(Problem(f"freeze_windows[{i}]", "there is no such day.", "Write days as 2026-12-20."))
            continue
        if all(days) and days[0] > days[1]:
            problems.append(Problem(f"freeze_windows[{i}].last_day", "the last day is before the first.", "Swap them."))
    return problems


def built_window(window: Mapping[str, Any]) -> FreezeWindow:
    """The window of a form that has no mistakes."""

    def minutes(text: str) -> int:
        return int(text[:2]) * 60 + int(text[3:])

    first, last = (window[name] and date.fromisoformat(window[name]) for name in ("first_day", "last_day"))
    return FreezeWindow(
        frozenset(DAYS.index(day) for day in window["days"]),
        minutes(window["from"]),
        minutes(window["to"]),
        first or None,
        last or None,
        window["why"],
        window.get("time_zone", "UTC"),
    )
