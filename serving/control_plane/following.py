"""Up to when a gateway routes by what the database said."""

from __future__ import annotations

from datetime import datetime

from serving.control_plane.flights import Flights


class Following:
    """A mark is an instant at which all that had been read was on its way, and the last response that was: once everything up to that is
    answered, the gateway has all that the database said by then. There is one mark at a time, so that it is reached however fast
    things change.
    """

    def __init__(self) -> None:
        self.at: datetime | None = None  # of the database's clock
        self._mark: tuple[datetime, int] | None = None

    def look(self, at: datetime, flights: Flights, *, is_told: bool) -> None:
        """`is_told`: all that was read by this instant is in `flights`, or was answered before."""
        self._reach(flights)
        if self._mark is None and is_told:
            self._mark = (at, flights.last)
            self._reach(flights)

    def spoil(self) -> None:
        """A response was refused, or is waited for no more: what the gateway has in its place may be from any time."""
        self._mark = None

    def _reach(self, flights: Flights) -> None:
        if self._mark is not None and flights.oldest > self._mark[1]:
            (self.at, _), self._mark = self._mark, None
