"""The life of a replica.

fetching → loading → warming → ready → draining → gone
ready → loading                         (its server died and is brought back)
fetching | loading | warming → failed → fetching (another try) | gone
fetching | loading | warming → draining
"""

from __future__ import annotations

from enum import StrEnum


class ReplicaState(StrEnum):
    FETCHING = "fetching"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    GONE = "gone"


S = ReplicaState
MOVES: dict[ReplicaState, frozenset[ReplicaState]] = {
    S.FETCHING: frozenset({S.LOADING, S.FAILED, S.DRAINING}),
    S.LOADING: frozenset({S.WARMING, S.FAILED, S.DRAINING}),
    S.WARMING: frozenset({S.READY, S.FAILED, S.DRAINING}),
    S.READY: frozenset({S.LOADING, S.DRAINING}),
    S.DRAINING: frozenset({S.GONE}),
    S.FAILED: frozenset({S.FETCHING, S.GONE}),
    S.GONE: frozenset(),
}
LIVE = frozenset(set(S) - {S.GONE})
