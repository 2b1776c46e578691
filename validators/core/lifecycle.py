"""The life of a gate run.

One whose worker died stays running: another worker goes on with it, and gates that have a verdict are kept.

queued → running → finished
queued | running → cancelled
"""

from __future__ import annotations

from enum import StrEnum


class GateRunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"


S = GateRunState
MOVES: dict[GateRunState, frozenset[GateRunState]] = {
    S.QUEUED: frozenset({S.RUNNING, S.CANCELLED}),
    S.RUNNING: frozenset({S.FINISHED, S.CANCELLED}),
    S.FINISHED: frozenset(),
    S.CANCELLED: frozenset(),
}
UNFINISHED = (S.QUEUED, S.RUNNING)
