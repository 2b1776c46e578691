"""What may happen to replicas, servers and routes."""

from __future__ import annotations

from serving.environments.actions.locks import notify_routes
from serving.targets.actions.lifecycle import (
    MOST_DRIFT,
    adopt_server,
    drain_replica,
    end_server,
    ensure_replica,
    keep_log,
    mark_serving,
    note_trouble,
    note_unseen,
    record_drift,
    record_exit,
    record_gpus,
    record_memory,
    record_probe,
    record_readings,
    record_server,
    record_state,
    register_node,
    release_replica,
)

__all__ = [
    "MOST_DRIFT",
    "adopt_server",
    "drain_replica",
    "end_server",
    "ensure_replica",
    "keep_log",
    "mark_serving",
    "note_trouble",
    "note_unseen",
    "notify_routes",
    "record_drift",
    "record_exit",
    "record_gpus",
    "record_memory",
    "record_probe",
    "record_readings",
    "record_server",
    "record_state",
    "register_node",
    "release_replica",
]
