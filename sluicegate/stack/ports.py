"""Loopback ports, chosen once and remembered."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path

#: Below Linux's range for outgoing connections (32768 and up), so that nobody's client takes a port while its server restarts.
CHOICES = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Old connections that only wait for their time-out do not count, as they do not for a server that sets this too.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
        return True


class Ports:
    """The port of each named server, kept in one JSON file so that a restart finds the same ones."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> dict[str, int]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def choose(self, name: str, *, preferred: int | None = None) -> int:
        """A free port for `name`: the remembered one, else the preferred one, else any; the choice is remembered."""
        known = self.read()
        others = {port for other, port in known.items() if other != name}
        port = next((p for p in (known.get(name), preferred) if p and p not in others and is_free(p)), None)
        while port is None:
            guess = random.choice(CHOICES)
            port = guess if guess not in others and is_free(guess) else None
        self._remember({**known, name: port})
        return port

    def require(self, name: str, port: int) -> None:
        """Makes this port the remembered one of `name`. Raises RuntimeError when another program listens on it."""
        if not is_free(port):
            raise RuntimeError(f"Port {port} is in use by another program; free it, or choose another one with --port.")
        self._remember({**self.read(), name: port})

    def _remember(self, ports: dict[str, int]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps(ports, indent=2) + "\n")
        draft.replace(self.file)
