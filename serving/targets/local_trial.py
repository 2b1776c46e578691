"""What gates see of the replicas that this installation's agents run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from registry.core.kinds import spoken_by
from registry.models import Release
from registry.queries import manifest_of
from serving.environments.core.endpoints import EndpointState
from serving.environments.queries.inventory import log_of, replicas_in, replicas_of
from serving.models import Environment, Server
from serving.servers.clients import Client, client_of
from serving.targets.core.gpu import GpuReading, reading_of
from serving.targets.core.use import Reading
from serving.targets.port import Machine, ServerEnd, Trial
from serving.targets.queries import gpu_readings_of, last_reading, readings_of, ready_server, server_before


@dataclass(frozen=True)
class LocalServer:
    """A server that an agent started."""

    row: Server

    @property
    def key(self) -> int:
        return self.row.pk

    @property
    def started_at(self) -> datetime:
        return self.row.started_at

    def client(self) -> Client:
        speaks = spoken_by(manifest_of(self.row.replica.release))
        return client_of(self.row.host, self.row.http_port, self.row.grpc_port, speaks)

    def readings(self, *, since_s: float, until_s: float) -> list[Reading]:
        return readings_of(self.row, since_s=since_s, until_s=until_s)

    def last_reading(self) -> Reading | None:
        return last_reading(self.row)

    def gpus(self) -> GpuReading | None:
        return reading_of(self.row.replica.node.gpus)

    def gpu_readings(self) -> list[GpuReading]:
        return gpu_readings_of(self.row.replica.node_id, since_s=self.started_at.timestamp())

    def log(self) -> str | None:
        kept = getattr(self.row, "log", None)
        return None if kept is None else kept.text

    def end(self) -> ServerEnd | None:
        self.row.refresh_from_db()
        row = self.row
        is_known = row.exit_code is not None or row.ended_at is not None
        return ServerEnd(row.exit_code, row.end_reason) if is_known else None


def local_trial(release: Release, environment: Environment) -> Trial | None:
    """The replica that `ensure_replica` returns, else the last that is gone."""
    found = replicas_in(release, environment).first()
    found = found or replicas_of(release).filter(environment=environment).first()
    if found is None:
        return None
    image = manifest_of(release)["runtime"]["image"]
    runtime: dict[str, Any] = next((own for own in found.node.runtimes if own.get("image") == image), {})
    return Trial(
        replica=str(found.pk),
        state=EndpointState(found.state),
        why=found.reason,
        is_wanted=found.is_wanted,
        machine=Machine(found.node_id, found.node.facts),
        server=lambda: _server(ready_server(release, environment)),
        server_before=lambda until: _server(server_before(found, until)),
        log_before=lambda until: _log_before(release, environment, until),
        timings=found.timings,
        versions=runtime.get("versions", {}),
        recoveries=found.recoveries,
    )


def _server(row: Server | None) -> LocalServer | None:
    return None if row is None else LocalServer(row)


def _log_before(release: Release, environment: Environment, until: datetime | None) -> tuple[str, datetime] | None:
    kept = log_of(release, environment, until)
    return None if kept is None else (kept.text, kept.at)
