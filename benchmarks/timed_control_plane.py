"""The product's control plane, with a note of when it did what, for `benchmarks.fleet_scale`.

Run `python -m benchmarks.timed_control_plane ADDRESS OUT`, in a project's environment. At SIGTERM OUT gets what was noted, as JSON:
{mark: [[when (Unix seconds), about what], …]}. A note is an append to a list: some hundred nanoseconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django

django.setup()

from django.core.management import call_command  # noqa: E402

from serving.management.commands import control_plane as command  # noqa: E402
from serving.traffic.control_plane import plane, store  # noqa: E402

notes: defaultdict[str, list[tuple[float, Any]]] = defaultdict(list)


def note(mark: str, about: Any = None) -> None:
    notes[mark].append((time.time(), about))


class TimedControlPlane(plane.ControlPlane):
    def _load(self) -> Any:
        note("woken")
        loaded = super()._load()
        note("read", max((one.generation for one in loaded.tables.values()), default=0))
        return loaded

    def _publish(self, environment: str, table: Any, loaded: Any) -> None:
        super()._publish(environment, table, loaded)
        note("published", table.generation)

    def record_acks(self, gateway: Any, acks: Any) -> None:
        note("acknowledged", [gateway.name, [(one.route_id, one.generation, one.error) for one in acks]])
        super().record_acks(gateway, acks)


def write_acks(rows: Iterable[store.AckRow]) -> None:
    rows = list(rows)
    _write_acks(rows)
    note("written", [(one.gateway_id, one.route_id, one.generation) for one in rows])


_write_acks, store.write_acks = store.write_acks, write_acks

if __name__ == "__main__":
    command.ControlPlane = TimedControlPlane  # type: ignore[misc]
    try:
        call_command("control_plane", address=sys.argv[1])
    finally:
        Path(sys.argv[2]).write_text(json.dumps(notes))
