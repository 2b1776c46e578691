"""Real Tritons for tests: their launcher, and their quick end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.adapters.linux_processes import is_running
from serving.ports import LaunchError, RunningServer
from serving.targets.agent import server_shim
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.containment import Finder
from serving.targets.agent.launcher import LocalLauncher
from tests.contracts.serving_models import VENV, MemoryBlobs, launch_spec


def kill_servers(servers: Path) -> None:
    """Every server in this folder of a node's. Their shims end soon after, and take along what is left of them."""
    for file in servers.glob(f"*/{server_shim.SHIM_FILE}"):
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(file.read_text())
            if is_running(record["server_pid"], record["server_ticks"]):
                os.kill(record["server_pid"], signal.SIGKILL)


def end_at_once(launcher: LocalLauncher) -> None:
    """Ends all servers of the launcher, and removes what is left of them. Asked politely, a Triton takes two seconds over its end."""
    kill_servers(launcher.servers)
    launcher.sweep(set())


#: Knows how servers are shut in here: a machine is asked once for a run, not by every launcher.
_asked: list[Finder] = []


@contextlib.contextmanager
def local_launcher(folder: Path, blobs: MemoryBlobs) -> Iterator[LocalLauncher]:
    """A launcher with its servers and its cache in the folder. No server outlives it."""
    launcher = LocalLauncher(servers=folder / "servers", venv=VENV, blobs=BlobCache(folder / "cache", blobs))
    if not _asked:
        _asked.append(launcher._finder)
    launcher._finder = _asked[0]
    try:
        yield launcher
    finally:
        end_at_once(launcher)


def start(launcher: LocalLauncher, manifest: dict[str, Any]) -> RunningServer:
    return launcher.start(launch_spec(manifest, launcher.folder_for(1, manifest["model"], "r1")))


def refusal(launcher: LocalLauncher, manifest: dict[str, Any]) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        start(launcher, manifest)
    assert list(launcher.servers.glob("*")) == []  # nothing half-made stays
    return caught.value
