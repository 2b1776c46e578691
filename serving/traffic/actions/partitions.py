"""Partitions of the kept series: made three days ahead, dropped when they are old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from django.db import connection, transaction

AHEAD: Final = timedelta(days=3)
DAY: Final = timedelta(days=1)


class Table(NamedTuple):
    """A partitioned table: the first day of the part that holds a day, a time longer than a part, and how long parts are kept."""

    name: str
    first: Callable[[date], date]
    longer: timedelta
    keep: timedelta


MINUTES: Final = Table("serving_seriesminute", lambda day: day, DAY, 2 * DAY)
BLOCKS: Final = Table("serving_seriesblock", lambda day: day - day.weekday() * DAY, 7 * DAY, 30 * DAY)
HOURS: Final = Table("serving_serieshour", lambda day: day.replace(day=1), 31 * DAY, 396 * DAY)
TABLES: Final = (MINUTES, BLOCKS, HOURS)


def make_partitions(since: datetime, until: datetime | None = None) -> int:
    """Makes those that are missing for rows from `since` to three days later (or `until`); how many."""
    made = 0
    last = (until or since + AHEAD).astimezone(UTC).date()
    for table in TABLES:
        first = table.first(since.astimezone(UTC).date())
        while first <= last:
            after = table.first(first + table.longer)
            made += _make(table, first, after)
            first = after
    return made


def _make(table: Table, first: date, after: date) -> bool:
    """As the tables' owner, by a function of the database: services work with rows alone."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '2s'")
        cursor.execute("SELECT serving_make_part(%s, %s, %s)", [table.name, first, after])
        return bool(cursor.fetchall()[0][0])


def drop_partitions(now: datetime) -> list[str]:
    """Drops those whose rows are all too old; their names. A part that a query locks for 2 s stays until the next time."""
    dropped = []
    for table in TABLES:
        for name, first in list(partitions(table)):
            after = datetime.combine(table.first(first + table.longer), datetime.min.time(), UTC)
            if after + table.keep <= now:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute("SET LOCAL lock_timeout = '2s'")
                    cursor.execute("SELECT serving_drop_part(%s, %s)", [table.name, first])
                dropped.append(name)
    return dropped


def partitions(table: Table) -> Iterator[tuple[str, date]]:
    """(name, first day), the oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = %s::regclass ORDER BY 1",
            [table.name],
        )
        for (name,) in cursor.fetchall():
            yield name, date.fromisoformat(name[-8:])
