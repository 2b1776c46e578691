"""A web process, workers and the command line as real processes, for tests and measurements of uploads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from sluicegate.stack import child
from tests.support.rigs.gateway_rig import free_port
from tests.support.worlds.registry_samples import CONTRACT, IMAGE

ROOT = Path(__file__).resolve().parents[3]
PART_BYTES = 5 << 20  # the least that S3 takes
LEASE_S = 2.0
START_S = 180.0
#: A process, and what returns when it is ready.
Begun = tuple[subprocess.Popen[bytes], Callable[[], None]]


class Installation:
    """Sluicegate's processes on one database and one store. Everything ends with `stop`."""

    def __init__(self, folder: Path, env: Mapping[str, str], *, part_bytes: int = PART_BYTES) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.count_file = folder / "counted"
        self.env = {
            **os.environ, "PYTHONPATH": str(ROOT), "SLUICEGATE_SECRET_KEY": "x" * 40, "SLUICEGATE_STATE_DIR": str(folder),
            "SLUICEGATE_UPLOAD_PART_BYTES": str(part_bytes), "SLUICEGATE_JOB_LEASE_S": str(LEASE_S),
            "COUNT_FILE": str(self.count_file), **env,
        }  # fmt: skip
        (folder / "static").mkdir(parents=True, exist_ok=True)
        self.count_file.touch()
        self._started: list[subprocess.Popen[bytes]] = []

    def _start(self, name: str, argv: list[str], **env: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            one = child.start([sys.executable, "-m", *argv], log=log, env={**self.env, **env}, cwd=ROOT)
        self._started.append(one)
        return one

    def start(self) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        """A web process and a worker, which come up side by side."""
        (web, answers), (worker, is_ready) = self._begin_web(), self._begin_worker()
        answers()
        is_ready()
        return web, worker

    def start_web(self) -> subprocess.Popen[bytes]:
        """Answering on `url`. The same port each time, so that it can be killed and come back."""
        web, answers = self._begin_web()
        answers()
        return web

    def start_worker(self, **env: str) -> subprocess.Popen[bytes]:
        worker, is_ready = self._begin_worker(**env)
        is_ready()
        return worker

    def _begin_web(self) -> Begun:
        said = (
            f"uvicorn tests.support.servers.counted_app:application --host 127.0.0.1 --port {self.port} --loop uvloop "
            "--http sluicegate.web_server:BoundedHttp"
        )
        web = self._start("web", [*said.split(), "--lifespan", "off", "--no-access-log", "--log-level", "warning"])
        return web, lambda: self._until(web, "web", self._answers)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v1/me", timeout=30).status_code == 401
        except httpx.TransportError:
            return False

    def _until(self, one: subprocess.Popen[bytes], name: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not is_so():
            assert time.monotonic() < deadline and one.poll() is None, self.log(name)
            time.sleep(0.05)

    def _begin_worker(self, **env: str) -> Begun:
        before = self.log("worker").count("ready.")
        said = (
            "celery -A sluicegate worker -Q default,validate -P threads -c 2 -l INFO --without-gossip --without-mingle"
        )
        worker = self._start("worker", [*said.split(), "-n", f"{uuid.uuid4().hex}@test"], **env)
        return worker, lambda: self._until(worker, "worker", lambda: self.log("worker").count("ready.") > before)

    def push(self, folder: Path, token: str, *words: str) -> subprocess.Popen[bytes]:
        """`sluicegate push`, under way. What it says goes to push.log."""
        said = {"SLUICEGATE_URL": self.url, "SLUICEGATE_TOKEN": token}
        return self._start("push", ["sluicegate.cli", "push", str(folder), *words], **said)

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def body_bytes(self, method: str = "PUT") -> int:
        """Bytes of request bodies that reached the web process's application, of requests that ended."""
        return sum(count for verb, count, _ in self.requests() if verb == method)

    def requests(self) -> list[tuple[str, int, int]]:
        """(method, bytes of the body that reached the application, status) of every request that ended."""
        lines = [line.split() for line in self.count_file.read_text().splitlines()]
        return [(verb, int(count), int(status)) for verb, _, count, status in lines]

    def stop(self) -> None:
        for one in reversed(self._started):
            child.stop(one, stop_signal=signal.SIGKILL)


def write_release(folder: Path, files: Mapping[str, bytes], **changes: Any) -> Path:
    """A release folder of the model `sentiment`, with a small graph and these files."""
    everything = {"artifact/model.py": b"class TritonPythonModel: ...\n", **files}
    for path, data in everything.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    document = {
        "model": "sentiment",
        "runtime": {"image": IMAGE, "server": "triton", "backend": "python"},
        "serving": {"max_batch_size": 16, **CONTRACT},
        **changes,
    }
    (folder / "release.yaml").write_text(yaml.safe_dump(document))
    return folder
