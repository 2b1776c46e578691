"""A network of hosts that are namespaces, whose links can be cut so that packets vanish, and whose processes can be killed at once.

It takes root and Linux. Nothing of it leaves the machine: the bridge lives in a namespace of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sluicegate.stack import child

NETWORK = "10.77.0"
_NEWNET = 0x40000000
#: Nobody's: what is sent there is taken off the bridge by nobody.
_NOWHERE = "02:00:00:00:00:fe"
_libc = ctypes.CDLL(None, use_errno=True)


def _ip(*told: str) -> None:
    subprocess.run(["ip", *told], check=True, capture_output=True, text=True)


class Host:
    """One namespace with one address."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name, self.address, self.namespace = name, f"{NETWORK}.{number}", f"sg{os.getpid()}-{name}"
        self.link = f"v{number}"  # its end at the bridge
        self._log = folder / f"{name}.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, argv: list[str], env: dict[str, str]) -> None:
        """A process of this host, which ends with this program."""
        with inside(self.namespace), self._log.open("ab") as log:
            self._processes.append(child.start(argv, log=log, env=env))

    def kill(self) -> None:
        """SIGKILL for every process that was started here."""
        for one in self._processes:
            one.kill()
        for one in self._processes:
            one.wait(60)
        self._processes.clear()

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


class Network:
    def __init__(self, folder: Path, names: list[str]) -> None:
        self._bridge = f"sg{os.getpid()}-bridge"
        self.hosts = {name: Host(name, number, folder) for number, name in enumerate(names, 1)}

    def start(self) -> None:
        """Raises CalledProcessError where namespaces are not permitted."""
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "br0", "up")
        for host in self.hosts.values():
            _ip("netns", "add", host.namespace)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            peer = ["peer", "name", "eth0", "netns", host.namespace]
            _ip("-n", self._bridge, "link", "add", host.link, "type", "veth", *peer)
            _ip("-n", self._bridge, "link", "set", host.link, "master", "br0", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """Ends every process and every namespace; whatever is gone already does not matter."""
        for host in self.hosts.values():
            host.kill()
        for namespace in [*(host.namespace for host in self.hosts.values()), self._bridge]:
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)

    def cut(self, one: str, *others: str) -> None:
        """From now on nothing passes between `one` and the others, and nobody is told."""
        self._between(one, others, "replace", ["lladdr", _NOWHERE, "nud", "permanent"])

    def heal(self, one: str, *others: str) -> None:
        self._between(one, others, "delete", [])

    def _between(self, one: str, others: tuple[str, ...], verb: str, told: list[str]) -> None:
        for other in others:
            for here, there in ((self.hosts[one], self.hosts[other]), (self.hosts[other], self.hosts[one])):
                _ip("-n", here.namespace, "neighbour", verb, there.address, *told, "dev", "eth0")


def enter(namespace: str) -> None:
    """This thread, and whatever it starts, is in that namespace from now on. Raises OSError."""
    with Path("/run/netns", namespace).open() as file:
        _enter(file.fileno())


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    with Path("/proc/thread-self/ns/net").open() as before:
        enter(namespace)
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _NEWNET):
        raise OSError(ctypes.get_errno(), "the namespace cannot be entered")
