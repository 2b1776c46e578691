"""The life of an incident: open → closed. A closed one stays closed."""

from __future__ import annotations

from enum import StrEnum


class IncidentState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


MOVES: dict[IncidentState, frozenset[IncidentState]] = {
    IncidentState.OPEN: frozenset({IncidentState.CLOSED}),
    IncidentState.CLOSED: frozenset(),
}
