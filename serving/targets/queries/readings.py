"""What servers were seen to use, and what the GPUs under them said."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import QuerySet

from serving.environments.queries.inventory import current_servers
from serving.models import NodeGpuReading, Server, ServerReading
from serving.targets.core.gpu import GpuReading, reading_of
from serving.targets.core.use import Reading, Use

_FIELDS = ("memory_bytes", "own_bytes", "shared_bytes", "cpu_s", "open_files", "gpu_memory_bytes")


def measured_servers(node: str) -> QuerySet[Server]:
    """The servers of the node that no user reaches, which their agent reads again and again."""
    return current_servers().filter(replica__node=node, replica__environment__is_routed=False)


def readings_of(server: Server, *, since_s: float, until_s: float) -> list[Reading]:
    """In their order, of seconds of the Unix epoch. What is older than an hour is gone."""
    since, until = (datetime.fromtimestamp(at_s, UTC) for at_s in (since_s, until_s))
    return [_reading(row) for row in server.readings.filter(at__gte=since, at__lte=until).order_by("at")]


def last_reading(server: Server) -> Reading | None:
    row = server.readings.order_by("-at").first()
    return None if row is None else _reading(row)


def gpu_readings_of(node: str, *, since_s: float) -> list[GpuReading]:
    """In their order, from these seconds of the Unix epoch on. What is older than an hour is gone."""
    rows = NodeGpuReading.objects.filter(node=node, at__gte=datetime.fromtimestamp(since_s, UTC)).order_by("at")
    return [one for one in map(reading_of, rows.values_list("gpus", flat=True)) if one is not None]


def _reading(row: ServerReading) -> Reading:
    return Reading(row.at.timestamp(), Use(**{name: getattr(row, name) for name in _FIELDS}))
