"""Named reads of environments, replicas, servers and routes."""

from __future__ import annotations

from serving.environments.queries.inventory import (
    all_environments,
    among,
    answering_servers,
    current_servers,
    environment_titles,
    environments_by_id,
    find_environment,
    gateways_in,
    get_environment,
    is_last_of_stable,
    live_replicas,
    nodes,
    ready_server,
    server_before,
    server_of,
)
from serving.targets.queries.readings import gpu_readings_of, last_reading, measured_servers, readings_of
from serving.traffic.queries.routes import environments, get_environment_with_routes

__all__ = [
    "all_environments",
    "among",
    "answering_servers",
    "current_servers",
    "environment_titles",
    "environments",
    "environments_by_id",
    "find_environment",
    "gateways_in",
    "get_environment",
    "get_environment_with_routes",
    "gpu_readings_of",
    "is_last_of_stable",
    "last_reading",
    "live_replicas",
    "measured_servers",
    "nodes",
    "readings_of",
    "ready_server",
    "server_before",
    "server_of",
]
