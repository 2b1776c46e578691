"""Hosts of one machine: network namespaces on one bridge, whose links can be cut so that packets vanish without a word."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NETWORK = "10.77.0"
_NEW_NET = 0x40000000
#: Nobody's hardware address: a frame to it is dropped by everyone who gets it, and nobody says so. An address that cannot be
#: resolved would be told to the sender as unreachable after three seconds, which a network with a router in between does not.
_NOBODY = "02:00:00:00:00:fe"


def _ip(*said: str, in_: str = "", check: bool = True) -> str:
    where = ["-n", in_] if in_ else []
    done = subprocess.run(["ip", *where, *said], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join([*where, *said])}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """A namespace with one address. Processes started in it are its own."""

    def __init__(self, prefix: str, name: str, number: int) -> None:
        self.name, self.namespace, self.address = name, f"{prefix}-{name}", f"{NETWORK}.{number}"
        self.mac = f"02:00:00:00:00:{number:02x}"
        self._running: list[subprocess.Popen[bytes]] = []

    def popen(
        self, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None, uid: int = 0, gid: int = 0
    ) -> subprocess.Popen[bytes]:
        as_user = [f"--setgid={gid}", f"--setuid={uid}"] if uid else []
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", *as_user, "--"]
        cwd = "/" if uid else Path(__file__).parents[2]
        with log.open("ab") as said:
            made = subprocess.Popen(
                [*enter, *map(str, argv)], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
        self._running.append(made)
        return made

    def pids(self) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.namespace, check=False).split()]

    def is_connected_to(self, address: str, port: int) -> bool:
        """Whether a process of this host has a TCP connection to there. Source: proc(5), /proc/net/tcp; addresses are little-endian."""
        there = f"{int.from_bytes(bytes(map(int, address.split('.'))), 'little'):08X}:{port:04X}"
        files = [
            Path(f"/proc/{self.pids()[0]}/net/{name}") for name in ("tcp", "tcp6")
        ]  # tcp6: IPv4 within IPv6 ends alike
        rows = [line.split()[2:4] for file in files for line in file.read_text().splitlines()[1:]]
        return any(remote.endswith(there) and state == "01" for remote, state in rows)

    def signal(self, number: signal.Signals) -> None:
        """To every process of the host but the caller."""
        for pid in self.pids():
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self) -> None:
        """All at once, as if the power went; its kernel still refuses connections, as one that has started again does."""
        for _ in range(2):  # the second for what was just being started
            self.signal(signal.SIGKILL)
        for one in self._running:
            one.wait(60)
        self._running = []


class Net:
    """Hosts by name, and the links between each two of them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.prefix = f"sg{os.getpid()}"
        self._switch = f"{self.prefix}-switch"
        self.hosts = {name: Host(self.prefix, name, number) for number, name in enumerate(names, 1)}

    def up(self) -> None:
        """Raises RuntimeError where namespaces are not permitted."""
        _ip("netns", "add", self._switch)
        _ip("link", "add", "br0", "type", "bridge", in_=self._switch)
        _ip("link", "set", "br0", "up", in_=self._switch)
        for number, host in enumerate(self.hosts.values()):
            _ip("netns", "add", host.namespace)
            port = f"p{number}"
            _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace, in_=self._switch)
            _ip("link", "set", port, "master", "br0", "up", in_=self._switch)
            _ip("link", "set", "eth0", "address", host.mac, "up", in_=host.namespace)
            _ip("link", "set", "lo", "up", in_=host.namespace)
            _ip("addr", "add", f"{host.address}/24", "dev", "eth0", in_=host.namespace)

    def enter(self, name: str) -> None:
        """This thread, and all that are started from it, become the host's."""
        with open(f"/run/netns/{self.hosts[name].namespace}") as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _NEW_NET):
                raise OSError(ctypes.get_errno(), "setns")

    def down(self) -> None:
        for host in self.hosts.values():
            host.signal(signal.SIGCONT)
            host.kill()
        end = time.monotonic() + 10
        for name in [one.namespace for one in self.hosts.values()] + [self._switch]:
            while _ip("netns", "pids", name, check=False).split() not in ([], [str(os.getpid())]):
                if time.monotonic() > end:
                    break
                time.sleep(0.05)
            _ip("netns", "del", name, check=False)

    def cut(self, these: Sequence[str], those: Sequence[str]) -> None:
        """From now on nothing goes between these hosts and those, in either direction; nobody is told."""
        self._set(these, those, is_cut=True)

    def heal(self, these: Sequence[str], those: Sequence[str]) -> None:
        self._set(these, those, is_cut=False)

    def _set(self, these: Sequence[str], those: Sequence[str], *, is_cut: bool) -> None:
        for one, other in itertools.product(these, those):
            for here, there in ((one, other), (other, one)):
                mac = _NOBODY if is_cut else self.hosts[there].mac
                said = ["neigh", "replace", self.hosts[there].address, "lladdr", mac, "nud", "permanent", "dev", "eth0"]
                _ip(*said, in_=self.hosts[here].namespace)


@contextlib.contextmanager
def network(names: Sequence[str]) -> Iterator[Net]:
    """Up while it is used; this process is the last host of it."""
    net = Net(names)
    try:
        net.up()
        net.enter(names[-1])
        yield net
    finally:
        net.down()
