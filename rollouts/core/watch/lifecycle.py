"""The life of an alarm: open → acknowledged → closed, and open again if the same objective burns again soon."""

from __future__ import annotations

from enum import StrEnum


class AlarmState(StrEnum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    CLOSED = "closed"


A = AlarmState
MOVES: dict[AlarmState, frozenset[AlarmState]] = {
    A.OPEN: frozenset({A.ACKNOWLEDGED, A.CLOSED}),
    A.ACKNOWLEDGED: frozenset({A.OPEN, A.CLOSED}),
    A.CLOSED: frozenset({A.OPEN}),
}
#: A person has to act, or does so.
LIVE = frozenset({A.OPEN, A.ACKNOWLEDGED})
#: An objective that burns again within this time (s) opens its last alarm again, and no second alarm.
AGAIN_WITHIN_S = 1800.0
