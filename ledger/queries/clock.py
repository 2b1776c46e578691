"""The database's time, so that processes on hosts whose clocks differ agree, and a clock that is set moves nothing."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from django.db import connection
from django.utils import timezone


def now() -> datetime:
    """The database's time, asked for. For instants that another process will count from."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (at,) = cursor.fetchone()
    return at


class DatabaseClock:
    """Asked once a turn; in between the monotonic clock goes on from there. `now` may be called by any thread."""

    def __init__(self) -> None:
        self._at: tuple[datetime, float] | None = None

    def sync(self) -> datetime:
        """The database's time now. Raises what the database does."""
        before = time.monotonic()
        at = now()
        after = time.monotonic()
        self._at = (at, (before + after) / 2)
        return self.now()

    def now(self) -> datetime:
        """By this host's own clock until the database was asked for the first time."""
        if self._at is None:
            return timezone.now()
        at, then = self._at
        return at + timedelta(seconds=time.monotonic() - then)

    @property
    def ahead_s(self) -> float:
        """How far the database's clock is ahead of this host's."""
        return (self.now() - timezone.now()).total_seconds()
