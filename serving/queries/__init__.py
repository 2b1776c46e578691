"""Named reads of environments, deployments, servers and routes."""

from __future__ import annotations

from serving.queries.deployments import (
    among,
    current_servers,
    deployment_of,
    environments,
    get_environment,
    is_last_of_stable,
    live_deployments,
    nodes,
    ready_server,
    server_of,
)

__all__ = [
    "among",
    "current_servers",
    "deployment_of",
    "environments",
    "get_environment",
    "is_last_of_stable",
    "live_deployments",
    "nodes",
    "ready_server",
    "server_of",
]
