"""An inference server that is not Triton, as a process for tests: started with one model by its rig, and ended with its context."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serving.ports import InferenceError
from serving.servers.adapters.triton import TritonServer
from serving.targets.core.static_servers import StaticServer
from tests.support.rigs.gateway_rig import wait_until

HOST = "127.0.0.1"


@dataclass
class OtherServer:
    """Its owner may end it and start it again, at the same ports."""

    argv: Sequence[str]
    folder: Path
    model: str
    http_port: int
    grpc_port: int
    client: TritonServer = field(init=False)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.client = TritonServer(HOST, self.http_port, self.grpc_port)

    @property
    def at(self) -> StaticServer:
        return StaticServer(HOST, self.http_port, self.grpc_port)

    def start(self) -> None:
        """It knows its model when this returns."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.defpath, "HOME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
            )
        try:
            wait_until(self._knows_its_model, f"a server with {self.model}", timeout_s=120)
        except AssertionError as error:
            raise AssertionError(f"{error}; it said: {(self.folder / 'log').read_text()[-4000:]}") from None
        for port in (self.http_port, self.grpc_port):
            with socket.socket() as other:
                other.bind(("127.0.0.2", port))  # refused where somebody listens on every address of the machine

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _knows_its_model(self) -> bool:
        assert self.is_running, "it has ended"
        with contextlib.suppress(InferenceError):
            return bool(self.client.metadata(self.model))
        return False


@contextlib.contextmanager
def other_server(argv: Sequence[str], folder: Path, model: str, ports: dict[str, int]) -> Iterator[OtherServer]:
    """A running one, whose folder goes with it."""
    one = OtherServer(argv, folder, model, ports["http"], ports["grpc"])
    try:
        one.start()
        yield one
    finally:
        one.kill()
        one.client.close()
        shutil.rmtree(folder)
