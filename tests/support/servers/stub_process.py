"""A stub server in a process of its own, which can be killed as a real one is: by SIGKILL, with requests in flight."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from serving.traffic.core.routes import ServerAddress
from tests.support.servers.stub_server import Backend, Loop, free_port


class StubProcess:
    """Answers as `Backend` does when it is well, `delay_s` after it was asked; listens `opens_after_s` from now on."""

    def __init__(self, name: str, *, delay_s: float = 0.0, opens_after_s: float = 0.0) -> None:
        self.endpoint = ServerAddress("127.0.0.1", free_port(), free_port())
        told = [name, self.endpoint.http_port, self.endpoint.grpc_port, delay_s, opens_after_s, "127.0.0.1"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.servers.stub_process", *map(str, told)],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
        )

    def wait(self) -> None:
        """Until it listens."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"listens\n":
            raise RuntimeError("the stub's process ended before it listened")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)


@contextlib.contextmanager
def stub_processes(
    names: list[str], *, delay_s: float = 0.0, opens_after_s: float = 0.0
) -> Iterator[list[StubProcess]]:
    """One of each name. They listen already, unless they open later."""
    made = [StubProcess(name, delay_s=delay_s, opens_after_s=opens_after_s) for name in names]
    try:
        for one in made if not opens_after_s else []:
            one.wait()
        yield made
    finally:
        for one in made:
            one.kill()
            assert one._process.stdout is not None
            one._process.stdout.close()


def _serve(name: str, http_port: int, grpc_port: int, delay_s: float, opens_after_s: float, address: str) -> None:
    time.sleep(opens_after_s)
    Backend(Loop(), name, delay_s=delay_s, address=address, http_port=http_port, grpc_port=grpc_port).start()
    sys.stdout.write("listens\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    told = sys.argv[1:]
    _serve(told[0], int(told[1]), int(told[2]), float(told[3]), float(told[4]), told[5])
