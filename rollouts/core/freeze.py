"""Freeze windows: when nothing is opened. What shuts, such as a rollback, works at any time.

A window is in wall time, as the clocks of its time zone show it. Twice a year such a clock skips an hour or shows one twice. A window
lasts from the first instant at which the clock shows its start, or has skipped it, to the last one at which it shows its end.
The rules of a zone come from the IANA time zone database, which is a table and the only file that is read here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MIN = 24 * 60
#: A freeze of more stretches than this ends after that many, as far as anybody is told.
MOST_STRETCHES = 400
#: Files of the database that are no names of zones: they differ from machine to machine, or count leap seconds.
_NO_ZONES = ("localtime", "Factory", "posixrules", "posix/", "right/")


@cache
def zone_of(name: str) -> tzinfo:
    """The zone with this IANA name, such as Europe/Berlin. Raises ValueError if the database has none."""
    if name == "UTC":
        return UTC
    if name.startswith(_NO_ZONES):
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError) as unknown:
        raise ValueError(name) from unknown


def zones_like(name: str) -> list[str]:
    """Names of zones that differ from `name` in case alone, or end with it, such as Europe/Berlin for berlin."""
    wanted = name.strip().replace(" ", "_").casefold()
    known = (one for one in available_timezones() if not one.startswith(_NO_ZONES))
    return sorted(one for one in known if wanted in (one.casefold(), one.casefold().rpartition("/")[2]))


@dataclass(frozen=True)
class FreezeWindow:
    """A stretch of every named weekday, or of every day from `first_day` to `last_day` (both within), in `time_zone`.

    `from_min` and `to_min` are minutes of the day as the clock shows them, 0 … 1440; if its end is not after its start, a window
    runs over midnight and belongs to the day on which it begins.
    """

    days: frozenset[int] = frozenset(range(7))  # 0 is Monday
    from_min: int = 0
    to_min: int = _DAY_MIN
    first_day: date | None = None
    last_day: date | None = None
    why: str = ""
    time_zone: str = "UTC"

    @property
    def zone(self) -> tzinfo:
        return zone_of(self.time_zone)

    def ends_after(self, now: datetime) -> datetime | None:
        """When the window that holds at `now` ends; None where none holds."""
        for back in (0, 1):
            stretch = self.on(now.astimezone(self.zone).date() - timedelta(days=back))
            if stretch is not None and stretch[0] <= now < stretch[1]:
                return stretch[1]
        return None

    def on(self, day: date) -> tuple[datetime, datetime] | None:
        """(begin, end) in UTC of the stretch that begins on this day of the zone; None if none does, or the clock skips all of it."""
        if not self._has(day):
            return None
        midnight = datetime.combine(day, time())
        to_min = self.to_min + (_DAY_MIN if self.to_min <= self.from_min else 0)
        begin = _instant(midnight + timedelta(minutes=self.from_min), self.zone, is_end=False)
        end = _instant(midnight + timedelta(minutes=to_min), self.zone, is_end=True)
        return (begin, end) if begin < end else None

    def covers(self, other: FreezeWindow) -> bool:
        """Whether the window freezes all that `other` does. If zones differ, or over midnight, only an equal window does."""
        if replace(self, why="") == replace(other, why=""):
            return True
        return (
            self.time_zone == other.time_zone
            and self.days >= other.days
            and self.from_min <= other.from_min < other.to_min <= self.to_min
            and (self.first_day is None or (other.first_day is not None and self.first_day <= other.first_day))
            and (self.last_day is None or (other.last_day is not None and other.last_day <= self.last_day))
        )

    def _has(self, day: date) -> bool:
        return (
            day.weekday() in self.days
            and (self.first_day is None or self.first_day <= day)
            and (self.last_day is None or day <= self.last_day)
        )


def _instant(shown: datetime, zone: tzinfo, *, is_end: bool) -> datetime:
    """When the zone's clock shows this time: the earlier instant of two, the later one for an end. If the clock skips the time, the
    instant of the skip."""
    first, second = (shown.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first <= second:
        return second if is_end else first
    before = second.astimezone(
        zone
    ).utcoffset()  # the skip lies between both: their offsets are those before and after it
    while first - second > timedelta(seconds=1):
        middle = second + (first - second) / 2
        second, first = (middle, first) if middle.astimezone(zone).utcoffset() == before else (second, middle)
    return first.replace(microsecond=0)


def in_words(window: FreezeWindow, until: datetime) -> str:
    """`2026-11-27 23:00 UTC`, and the time that the window's own clock shows if its zone is not UTC."""
    local = local_words(window, until)
    return f"{until.astimezone(UTC):%Y-%m-%d %H:%M} UTC{f' ({local})' if local else ''}"


def local_words(window: FreezeWindow, until: datetime) -> str:
    """`2026-11-28 00:00 in Europe/Berlin`; empty for a window in UTC."""
    if window.time_zone == "UTC":
        return ""
    return f"{until.astimezone(window.zone):%Y-%m-%d %H:%M} in {window.time_zone}"


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
    """One time in which nothing is opened, in UTC. `whys` are the reasons of its windows, each once, and `time_zones` their zones
    other than UTC."""

    begins_at: datetime
    ends_at: datetime
    whys: tuple[str, ...]
    time_zones: tuple[str, ...] = ()

    @property
    def local_words(self) -> list[str]:
        """For each of the zones, `Fri 2026-11-27 16:00 to Sat 2026-11-28 00:00 in Europe/Berlin`."""
        both = (self.begins_at, self.ends_at)
        return [
            f"{' to '.join(f'{at.astimezone(zone_of(name)):%a %Y-%m-%d %H:%M}' for at in both)} in {name}"
            for name in self.time_zones
        ]


def stretches(windows: Iterable[FreezeWindow], begin: datetime, end: datetime) -> tuple[Stretch, ...]:
    """The freezes between two instants, in their order; windows that touch are one. Both instants are aware."""
    found = []
    for window in windows:
        first = begin.astimezone(window.zone).date()
        zones: tuple[str, ...] = () if window.time_zone == "UTC" else (window.time_zone,)
        for ahead in range(-1, (end.astimezone(window.zone).date() - first).days + 1):
            stretch = window.on(first + timedelta(days=ahead))
            if stretch is not None and stretch[1] > begin and stretch[0] < end:
                found.append(Stretch(*stretch, (window.why,) if window.why else (), zones))
    merged: list[Stretch] = []
    for one in sorted(found, key=lambda each: (each.begins_at, each.ends_at)):
        if merged and one.begins_at <= merged[-1].ends_at:
            last = merged[-1]
            whys = tuple(dict.fromkeys((*last.whys, *one.whys)))
            zones = tuple(dict.fromkeys((*last.time_zones, *one.time_zones)))
            merged[-1] = Stretch(last.begins_at, max(last.ends_at, one.ends_at), whys, zones)
        else:
            merged.append(one)
    return tuple(merged)


def uncovered(own: Iterable[FreezeWindow], others: Collection[FreezeWindow]) -> list[FreezeWindow]:
    """Windows of `own` that no window of `others` covers alone. Reasons are not compared."""
    return [window for window in own if not any(other.covers(window) for other in others)]
