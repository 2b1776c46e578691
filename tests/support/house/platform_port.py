"""The names by which a room reaches where releases run: a ratchet until `serving.targets` is the only door."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Modules of `serving` about routes, gateways, environments and inference clients, and pure values. Nothing here runs a release.
_BESIDE = (
    "serving.ports", "serving.servers", "serving.wiring", "serving.api.environments", "serving.api.plans",
    "serving.targets.core", "serving.targets.adapters", "serving.traffic.core", "serving.traffic.adapters", "serving.environments.core",
    "serving.traffic.control_plane", "serving.traffic.actions", "serving.environments.actions.locks",
    "serving.traffic.queries.admission", "serving.traffic.queries.endpoints", "serving.traffic.queries.request_examples",
    "serving.traffic.queries.route_splits", "serving.traffic.queries.routes", "serving.traffic.queries.time_limits",
)  # fmt: skip
_NAMES_BESIDE = {
    "Endpoint", "Environment", "Gateway", "RequestExample", "Route", "Sleep", "all_environments", "environments_by_id",
    "find_environment", "gateways_in", "get_environment", "get_environment_with_routes", "one_environment", "among", "among_text",
    "array_text", "environments_resting_on", "gateways_that_speak", "has_history",
}  # fmt: skip


def names_across(room: str) -> set[str]:
    """`module.name` of each name that the room imports from where releases run."""
    found = set()
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("serving"):
                is_beside = any(node.module == one or f"{node.module}.".startswith(f"{one}.") for one in _BESIDE)
                names = () if is_beside else (one.name for one in node.names)
                found |= {f"{node.module}.{name}" for name in names if name not in _NAMES_BESIDE}
    return found
