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
        length = self.to_min - self.from_min + (_DAY_MIN if self.to_min <= self.from_min else 0)
        for back in (0, 1):
            day = now.astimezone(UTC).date() - timedelta(days=back)
            start = datetime.combine(day, time(), UTC) + timedelta(minutes=self.from_min)
            end = start + timedelta(minutes=length)
            if self._has(day) and start <= now < end:
                return end
        return None

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
