"""A node whose servers are files: they live on whatever becomes of its agent, and whoever looks into the folder sees what runs."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving.ports import LaunchSpec, RunningServer
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from tests.support.worlds.factories import RUNTIME

RUNS = "runs"
#: Above every real process id.
_PIDS = 900_000_000


@dataclass(frozen=True)
class Machine:
    """Implements `serving.targets.agent.node_launcher.NodeLauncher`."""

    name: str
    servers: Path
    memory_mib: int
    runs_here: bool = True
    tells_live: bool = True

    def running(self) -> set[str]:
        """The folders of its servers that run."""
        return {str(one.parent) for one in self.servers.glob(f"*/{RUNS}")}

    def facts(self, launcher: object = None) -> dict[str, Any]:
        """What its agent tells of it."""
        return {"memory_bytes": self.memory_mib << 20}

    def runtimes(self) -> list[dict[str, Any]]:
        return [{"image": RUNTIME, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {}}]

    def missing(self) -> str:
        return ""

    def containment(self) -> dict[str, Any]:
        return {"tier": "contained", "layers": ["user"]}

    def folder_for(self, replica_id: int, model: str, release_name: str) -> Path:
        return self.servers / f"{model}-{release_name}-{replica_id}-{secrets.token_hex(4)}"

    def start(self, spec: LaunchSpec) -> RunningServer:
        spec.folder.mkdir(parents=True)
        pid = _PIDS + secrets.randbelow(10**9)
        (spec.folder / RUNS).write_text(json.dumps({"pid": pid, "model": spec.model, **spec.manifest["serving"]}))
        return RunningServer("127.0.0.1", 1, 2, 3, pid, spec.folder)

    def await_loaded(self, server: RunningServer, model: str, **_: object) -> None:
        pass

    def connect(self, server: RunningServer) -> FakeInferenceServer:
        told = json.loads((server.folder / RUNS).read_text())
        return FakeInferenceServer({told["model"]: FakeModel(told, _answer)})

    def is_alive(self, server: RunningServer) -> bool:
        return (server.folder / RUNS).exists()

    def open_requests(self, server: RunningServer) -> int:
        return 0

    def exit_code(self, server: RunningServer) -> int | None:
        return None

    def adopt(self, folder: Path) -> RunningServer | None:
        with contextlib.suppress(FileNotFoundError):
            return RunningServer("127.0.0.1", 1, 2, 3, json.loads((folder / RUNS).read_text())["pid"], folder)
        return None

    def stop(self, server: RunningServer, *, grace_s: float) -> None:
        shutil.rmtree(server.folder, ignore_errors=True)

    def sweep(self, keep: set[Path]) -> list[Path]:
        left = [one for one in self.servers.iterdir() if one.is_dir() and one not in keep]
        for folder in left:
            shutil.rmtree(folder)
        return left

    def stop_left(self) -> None:
        pass


def _answer(tensors: dict[str, Any]) -> dict[str, Any]:
    return {"probabilities": np.zeros((len(tensors["TEXT"]), 2), np.float32)}
