"""Freeze windows: when nothing is opened. What shuts, such as a rollback, works at any time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MIN = 24 * 60
#: A freeze of more stretches than this ends after that many, as far as anybody is told.
MOST_STRETCHES = 400


@dataclass(frozen=True)
class FreezeWindow:
    """A stretch of every named weekday, or of every day from `first_day` to `last_day` (both within). All in UTC.

    `from_min` and `to_min` are minutes of the day, 0 … 1440; a window whose end is not after its start runs over midnight
    and belongs to the day on which it begins.
    """

    days: frozenset[int] = frozenset(range(7))  # 0 is Monday
    from_min: int = 0
    to_min: int = _DAY_MIN
    first_day: date | None = None
    last_day: date | None = None
    why: str = ""

    def ends_after(self, now: datetime) -> datetime | None:
        """When the window that holds at `now` ends; None where none holds."""
        for back in (0, 1):
            stretch = self.on(now.astimezone(UTC).date() - timedelta(days=back))
            if stretch is not None and stretch[0] <= now < stretch[1]:
                return stretch[1]
        return None

    def on(self, day: date) -> tuple[datetime, datetime] | None:
        """(begin, end) of the stretch that begins on this day; None where none does."""
        if not self._has(day):
            return None
        length = self.to_min - self.from_min + (_DAY_MIN if self.to_min <= self.from_min else 0)
        start = datetime.combine(day, time(), UTC) + timedelta(minutes=self.from_min)
        return start, start + timedelta(minutes=length)

    def _has(self, day: date) -> bool:
        return (
            day.weekday() in self.days
            and (self.first_day is None or self.first_day <= day)
            and (self.last_day is None or day <= self.last_day)
        )


def frozen(windows: Iterable[FreezeWindow], now: datetime) -> tuple[FreezeWindow, datetime] | None:
    """The window that holds at `now` and ends last, with the end of the whole freeze where windows touch; None outside of all."""
    windows = tuple(windows)
    found: tuple[FreezeWindow, datetime] | None = None
    until = now
    for _ in range(MOST_STRETCHES):
        ends = [(window, end) for window in windows if (end := window.ends_after(until)) is not None]
        if not ends:
            break
        last = max(ends, key=lambda one: one[1])
        found = (found[0] if found else last[0], last[1])
        until = last[1]
    return found


@dataclass(frozen=True)
class Stretch:
    """One time in which nothing is opened. `whys` are what its windows say, each once."""

    begins_at: datetime
    ends_at: datetime
    whys: tuple[str, ...]


def stretches(windows: Iterable[FreezeWindow], begin: datetime, end: datetime) -> tuple[Stretch, ...]:
    """The freezes between two instants, in their order; windows that touch are one. Both instants are aware; days are UTC's."""
    found = []
    days = (end.astimezone(UTC).date() - begin.astimezone(UTC).date()).days
    for window in windows:
        for ahead in range(-1, days + 1):
            day = begin.astimezone(UTC).date() + timedelta(days=ahead)
            stretch = window.on(day)
            if stretch is not None and stretch[1] > begin and stretch[0] < end:
                found.append(Stretch(*stretch, (window.why,) if window.why else ()))
    merged: list[Stretch] = []
    for one in sorted(found, key=lambda each: (each.begins_at, each.ends_at)):
        if merged and one.begins_at <= merged[-1].ends_at:
            last = merged[-1]
            whys = tuple(dict.fromkeys((*last.whys, *one.whys)))
            merged[-1] = Stretch(last.begins_at, max(last.ends_at, one.ends_at), whys)
        else:
            merged.append(one)
    return tuple(merged)
