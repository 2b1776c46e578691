"""What servers were seen to use."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import QuerySet

from serving.core.use import Reading, Use
from serving.models import Server, ServerReading
from serving.queries.deployments import current_servers

_FIELDS = ("memory_bytes", "own_bytes", "shared_bytes", "cpu_s", "open_files", "gpu_memory_bytes")


def measured_servers(node: str) -> QuerySet[Server]:
    """The servers of the node that no user reaches, which their agent reads again and again."""
    return current_servers().filter(deployment__node=node, deployment__environment__is_routed=False)


def readings_of(server: Server, *, since_s: float, until_s: float) -> list[Reading]:
    """In their order, of seconds of the Unix epoch. What is older than an hour is gone."""
    since, until = (datetime.fromtimestamp(at_s, UTC) for at_s in (since_s, until_s))
    return [_reading(row) for row in server.readings.filter(at__gte=since, at__lte=until).order_by("at")]


def last_reading(server: Server) -> Reading | None:
    row = server.readings.order_by("-at").first()
    return None if row is None else _reading(row)


def _reading(row: ServerReading) -> Reading:
    return Reading(row.at.timestamp(), Use(**{name: getattr(row, name) for name in _FIELDS}))
