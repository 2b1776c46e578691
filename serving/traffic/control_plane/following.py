"""Up to when a gateway routes by what the database said."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime

from serving.traffic.control_plane.flights import Flights


@dataclass
class _Mark:
    """`number`: of the last response that it waits for; `unsent`: the models of which something is still to be sent."""

    at: datetime
    number: int
    unsent: Set[str]


class Following:
    """A mark is an instant by which the database was read, and what of it the gateway has not answered yet. Once all that is answered, the
    gateway has what the database said by then. There is one mark at a time, so that it is reached however fast things change.
    """

    def __init__(self) -> None:
        self._at: datetime | None = None  # of the database's clock
        self._mark: _Mark | None = None

    def look(self, at: datetime, flights: Flights, unsent: Set[str], *, is_told: bool) -> datetime | None:
        """After each turn of the stream; up to when the gateway follows, None before it does.

        `is_told`: of all that was read by this instant everything was sent, but for the models that are `unsent`: they wait for their
        turn, or for an answer that comes first.
        """
        if is_told:
            self._reach(flights, unsent)
            if self._mark is None:
                self._mark = _Mark(at, flights.last, unsent)
                self._reach(flights, unsent)
        return self._at

    def spoil(self) -> None:
        """A response was refused, or is waited for no more: what the gateway has in its place may be from any time."""
        self._mark = None

    def _reach(self, flights: Flights, unsent: Set[str]) -> None:
        if self._mark is None:
            return
        if self._mark.unsent - unsent:  # of these all has been sent since
            self._mark.unsent, self._mark.number = self._mark.unsent & unsent, flights.last
        if not self._mark.unsent and flights.oldest > self._mark.number:
            self._at, self._mark = self._mark.at, None
