"""A real Triton that somebody else runs: started here by hand with explicit model control, and known to nobody by more than its address."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from registry.core.kinds.triton import TRITON
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent import server_shim
from serving.targets.agent.server_command import command_of
from serving.targets.agent.server_ports import free_ports
from serving.targets.core.static_servers import StaticServer
from tests.contracts.serving_models import VENV
from tests.support.rigs.gateway_rig import wait_until

HOST = "127.0.0.1"


class Owner:
    """Who runs it. `repository` is its own, from which it loads nothing by itself."""

    def __init__(self, folder: Path, *, control: str = "explicit") -> None:
        self.folder, self.repository, self._control = folder, folder / "repository", control
        self.repository.mkdir(parents=True)
        self._ports, self._prefix = free_ports(HOST), f"owner{secrets.token_hex(4)}_"
        self.at = StaticServer(HOST, self._ports["http"], self._ports["grpc"])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """It answers when this returns; at the same ports as before."""
        how, env = command_of(
            TRITON, VENV, folder=self.folder, address=HOST, ports=self._ports, secret="", shm_prefix=self._prefix, model="",
        )  # fmt: skip
        argv = list(how.argv)
        argv[argv.index("--model-control-mode=none")] = f"--model-control-mode={self._control}"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        client = self.client()
        try:
            wait_until(client.is_live, "a Triton of somebody else's")
        finally:
            client.close()

    def client(self) -> TritonServer:
        return TritonServer(HOST, self.at.http_port, self.at.grpc_port)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        server_shim.clear_shared_memory(self._prefix)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """It answers nobody, and has what it had afterwards."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


@contextlib.contextmanager
def owner(folder: Path, *, control: str = "explicit") -> Iterator[Owner]:
    """A running one. It ends with the context, whoever loaded what into it."""
    one = Owner(folder, control=control)
    try:
        one.start()
        yield one
    finally:
        one.kill()
