"""What an agent asks of its node's launcher beyond the port, and of the servers that it started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from serving.ports import InferenceServer, Launcher, RunningServer


class NodeLauncher(Launcher, Protocol):
    """A launcher that can also find again what an earlier agent started.

    `runs_here`: its servers are processes of this machine, which can be measured and whose files can be read.
    """

    runs_here: bool

    @property
    def tells_live(self) -> bool:
        """Whether its servers answer the liveness call while their model computes, if their kind does (`registry.core.kinds`)."""
        ...

    def open_requests(self, server: RunningServer) -> int | None:
        """Number of connections to the server, each of which may carry a request. None if they cannot be counted."""
        ...

    def facts(self) -> dict[str, Any]:
        """What is to be known of its servers beside the machine's own facts."""
        ...

    def folder_for(self, replica_id: int, model: str, release_name: str) -> Path: ...

    def adopt(self, folder: Path) -> RunningServer | None: ...

    def sweep(self, keep: set[Path]) -> list[Path]: ...

    def stop_left(self) -> None:
        """Stops what could not be stopped when that was asked for. Short, where it still cannot be."""
        ...

    def missing(self) -> str: ...

    def exit_code(self, server: RunningServer) -> int | None:
        """How a server ended by itself: its exit status, less than 0 for a signal. None while it lives, or where nobody knows."""
        ...

    def containment(self) -> dict[str, Any]: ...


class ClosableServer(InferenceServer, Protocol):
    def close(self) -> None: ...


Connect = Callable[[RunningServer], ClosableServer]
