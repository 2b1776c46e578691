"""States in which a platform publishes a replica."""

from __future__ import annotations

from enum import StrEnum


class EndpointState(StrEnum):
    """`pending`: accepted, and waiting for a place without a time limit. The others are those of
    `serving.environments.core.lifecycle.ReplicaState`."""

    PENDING = "pending"
    FETCHING = "fetching"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    GONE = "gone"
