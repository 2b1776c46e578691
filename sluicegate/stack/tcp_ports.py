"""Loopback TCP ports, chosen once and remembered. Interfaces to outside systems are `serving.ports` and `registry.storage.port`."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Collection
from pathlib import Path

from ledger.adapters.files import write_whole
from ledger.adapters.local_ports import CHOICES


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


#: How the kernel writes 127.0.0.1 and "every address" in /proc/net/tcp and tcp6 on a little-endian machine.
_OURS = {"0100007F", "00000000", "0000000000000000FFFF00000100007F", "0" * 32}
_LISTEN = "0A"


def is_bound_by(session: int, port: int) -> bool | None:
    """Whether a process of this session listens on the port: False where only other processes do, None where none does.

    An answer on a port says nothing about who gave it. True where the session's processes may not be looked into.
    Source: proc_net(5), proc_pid_fd(5).
    """
    sockets = _listening(port)
    if not sockets:
        return None
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session and sockets & _sockets_of(entry):
                return True
        except PermissionError:
            return True
        except OSError:
            continue  # it has just ended
    return False


def _listening(port: int) -> set[str]:
    """The sockets that listen on this port of 127.0.0.1, as the kernel names them in /proc/<pid>/fd."""
    found = set()
    for table in ("tcp", "tcp6"):
        file = Path("/proc/net") / table
        for row in file.read_text().splitlines()[1:] if file.exists() else ():
            fields = row.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTEN and int(number, 16) == port and address in _OURS:
                found.add(f"socket:[{fields[9]}]")
    return found


def _sockets_of(process: Path) -> set[str]:
    found = set()
    for one in (process / "fd").iterdir():
        try:
            found.add(os.readlink(one))
        except OSError:
            continue
    return found


class ReservedPorts:
    """Ports that are kept from other programs until the server that shall have them starts. Closes them at the end of a `with` block.

    A socket is bound and does not listen, so that a client is refused as if nothing were there.
    """

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(self, *error: object) -> None:
        self.release(list(self._sockets))

    def reserve(self, port: int) -> None:
        """Holds the port of 127.0.0.1. Without effect while connections of an earlier server wait for their time-out."""
        keeper = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            keeper.bind(("127.0.0.1", port))
        except OSError:
            keeper.close()
            return
        self._sockets[port] = keeper

    def release(self, ports: Collection[int]) -> None:
        """Gives these ports free, for a server that starts now."""
        for port in ports:
            if keeper := self._sockets.pop(port, None):
                keeper.close()


class Ports:
    """The port of each named server, kept in one JSON file so that a restart finds the same ones.

    `moved` has those that did not get the port they had or wanted, since another program has it: {name: that port}.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.moved: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def keep(self, names: Collection[str]) -> None:
        """Forgets the ports of all others, such as of a server that an older version had."""
        known = self.read()
        if not known.keys() <= set(names):
            self._remember({name: port for name, port in known.items() if name in names})

    def choose(self, name: str, *, preferred: int | None = None) -> int:
        """A free port for `name`: the remembered one, else the preferred one, else any; the choice is remembered."""
        known = self.read()
        others = {port for other, port in known.items() if other != name}
        port = next((p for p in (known.get(name), preferred) if p and p not in others and is_free(p)), None)
        while port is None:
            guess = random.choice(CHOICES)
            port = guess if guess not in others and is_free(guess) else None
        wanted = known.get(name) or preferred
        if wanted and wanted != port:
            self.moved[name] = wanted
        self._remember({**known, name: port})
        return port

    def require(self, name: str, port: int) -> None:
        """Stores this port as the port of `name`. Raises RuntimeError when another program listens on it."""
        if not is_free(port):
            raise RuntimeError(f"Port {port} is in use by another program; free it, or choose another one with --port.")
        self._remember({**self.read(), name: port})

    def _remember(self, ports: dict[str, int]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, json.dumps(ports, indent=2) + "\n")
