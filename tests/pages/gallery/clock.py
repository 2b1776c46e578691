"""A clock that begins in the past and is moved on by hand, so that a story of days is written in seconds."""

from __future__ import annotations

import datetime as library
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from unittest import mock

from django.utils import timezone

from ledger.queries.clock import DatabaseClock


class StoryClock(DatabaseClock):
    """What the engine, the gateway and every action take for the time, within `running`."""

    def __init__(self, ago: timedelta) -> None:
        super().__init__()
        self.at = datetime.now(UTC) - ago

    def sync(self) -> datetime:
        return self.at

    def now(self) -> datetime:
        return self.at

    def pass_s(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def go_to(self, **ago: float) -> None:
        """To so long before the present. Raises ValueError for an instant that the story has passed."""
        to = datetime.now(UTC) - timedelta(**ago)
        if to < self.at:
            raise ValueError(f"{to} is before {self.at}, and the log only grows")
        self.at = to

    @contextmanager
    def running(self) -> Iterator[None]:
        clock = self

        class Instants(library.datetime):
            @classmethod
            def now(cls, tz: library.tzinfo | None = None) -> datetime:  # type: ignore[override]
                return clock.at

        with (
            mock.patch.object(timezone, "now", self.now),
            mock.patch("ledger.actions.events.datetime", Instants),
            mock.patch("ledger.queries.clock.now", self.now),
        ):
            yield
