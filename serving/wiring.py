"""Composition root: which adapter implements each port in this installation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from django.conf import settings

from registry.storage import store
from serving.models import ListedServer
from serving.ports import CounterHistory, ExternalMetrics, RunningServer
from serving.servers.clients import Client, client_of
from serving.targets.adapters.dcgm import read_dcgm
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.server_shim import is_locked
from serving.targets.agent.static_launcher import StaticLauncher
from serving.targets.core.gpu import GpuReading
from serving.targets.core.static_servers import StaticServer
from serving.traffic.adapters.prometheus import Prometheus


def static_launcher(server: ListedServer, blobs: BlobCache) -> StaticLauncher:
    """Launcher of a server that its owner runs."""
    return StaticLauncher(
        StaticServer(server.host, server.http_port, server.grpc_port),
        servers=_folder_of(server) / "servers",
        blobs=blobs,
        loads=server.loads,
        runtime=server.runtime,
        kind=server.kind,
        allows_uncontained_code=settings.ALLOW_UNCONTAINED_CODE,
    )


def launcher(blobs: BlobCache) -> LocalLauncher:
    """Launcher of this machine, which takes files from these copies.

    Under a stack that holds its lock, servers end with the stack; without one they stay.
    """
    lock = settings.STATE_DIR / "stack.lock"
    return LocalLauncher(
        servers=settings.STATE_DIR / "servers",
        venv=settings.SERVING_VENV,
        blobs=blobs,
        lock=lock if is_locked(lock) else None,
        allows_uncontained_code=settings.ALLOW_UNCONTAINED_CODE,
        address=settings.NODE_ADDRESS,
    )


def blob_cache(server: ListedServer | None = None) -> BlobCache:
    """Copies of the files of releases: this machine's, or those for a listed server. None are shared, since each agent removes half
    fetched files at its start."""
    folder = settings.STATE_DIR / "blob-cache" if server is None else _folder_of(server) / "blobs"
    return BlobCache(folder, store(), max_bytes=settings.BLOB_CACHE_BYTES)


def _folder_of(server: ListedServer) -> Path:
    return Path(settings.STATE_DIR) / "static-servers" / server.node_id


def connect(server: RunningServer) -> Client:
    """A client of a server that this node's launcher started. The caller closes it."""
    return client_of(server.host, server.http_port, server.grpc_port, server.speaks)


def counter_history() -> CounterHistory | None:
    """Source of counters of the past; None if no Prometheus is configured."""
    return Prometheus(settings.PROMETHEUS_URL) if settings.PROMETHEUS_URL else None


def external_metrics() -> ExternalMetrics | None:
    """Where guards with PromQL are asked; None where no such place is configured."""
    return Prometheus(settings.PROMETHEUS_URL) if settings.PROMETHEUS_URL else None


def gpus_by_dcgm() -> Callable[[], GpuReading] | None:
    """Where this node's GPUs are asked for that NVML does not tell of; None where no such place is configured."""
    if not (settings.PROMETHEUS_URL and settings.DCGM_SELECTOR):
        return None
    return partial(read_dcgm, Prometheus(settings.PROMETHEUS_URL), settings.DCGM_SELECTOR)
