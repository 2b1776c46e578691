"""What hostile code tries, told as JSON: for each try "yes" if it got through, otherwise the error's name. Standard library only.

`python sandbox_probes.py '{"secret": PATH, "pid": N, "port": N, …}'` runs inside a sandbox and inside a server's model.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_MIB = 1 << 20
_FASTOPEN = 0x20000000  # Source: linux/socket.h
#: System calls of x86-64 with arguments that ask for something harmless.
_CALLS: dict[str, tuple[int, ...]] = {
    "ptrace": (101, 16, 1, 0, 0),  # attach to the first process
    "unshare": (272, 0x10000000),
    "keyctl": (250, 0, -3, 0),
    "bpf": (321, 0, 0, 0),
    "userfaultfd": (323, 0),
    "io_uring": (425, 1, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0),
    "mount": (165, 0, 0, 0, 0, 0),
    "setns": (308, 0, 0),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "quotactl_fd": (443, 0, 0, 0, 0),
    "remove a POSIX queue": (241, 0),
}


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Every probe's outcome by its name."""
    found = {"capabilities": _outcome(_capabilities)}  # before a probe makes a namespace of its own
    found |= {name: _outcome(lambda probe=probe: probe(given)) for name, probe in _PROBES.items()}
    found |= {name: _outcome(lambda call=call: _call(*call)) for name, call in _CALLS.items()}
    return {**found, "pids": _outcome(lambda: sum(name.isdigit() for name in os.listdir("/proc")))}


def bounds(given: dict[str, Any]) -> dict[str, int]:
    """How much could be had: open files, processes, MiB of memory in one process, MiB in /dev/shm. With the limit of processes."""
    return {
        "limit": given["processes"],
        "open_files": _open_files(),
        "processes": _forks(given["processes"] + 50),
        "memory": _memory(),
        "shared_memory": _shared(given),
    }


def _outcome(probe: Callable[[], Any]) -> Any:
    try:
        found = probe()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "no errno")
    return "yes" if found is None or found is True else found


def _sequential() -> socket.socket:
    """As libcuda makes one, with an abstract name."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(f"\0probe-{os.getpid()}-{made.fileno()}")
    return made


def _call(number: int, *arguments: int) -> None:
    _result(number, *arguments)


def _result(number: int, *arguments: int) -> int:
    result = int(_LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def _capabilities() -> int:
    """The bits of its own, effective and permitted. Source: linux/capability.h."""
    found = ctypes.create_string_buffer(24)
    if _LIBC.syscall(ctypes.c_long(125), struct.pack("=Ii", 0x20080522, 0), found) < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return sum(word for place, word in enumerate(struct.unpack("6I", found.raw)) if place % 3 < 2)


def _make_and_remove(make: int, control: int, *arguments: int) -> None:
    """Something of System V without a number. To remove it is command 0 (IPC_RMID), after the place in it that semaphores have."""
    made = _result(make, 0, *arguments, 0o600)
    _call(control, made, 0, 0, 0)


def _read(path: str) -> None:
    Path(path).read_bytes()


def _write(path: str) -> None:
    Path(path).write_bytes(b"x")


def _connect(family: int, kind: int, address: Any, protocol: int = 0) -> None:
    with socket.socket(family, kind, protocol) as one:
        one.settimeout(2)
        one.connect(address)


def _fast_open(given: dict[str, Any]) -> None:
    with socket.socket() as one:
        one.settimeout(2)
        one.sendto(b"x", _FASTOPEN, ("127.0.0.1", given["port"]))


def _datagram(given: dict[str, Any]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", given["port"]))


def _listen(port: int) -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))


def _raw_socket() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


def _pair() -> None:
    for one in socket.socketpair():
        one.close()


def _execute_own_file(given: dict[str, Any]) -> None:
    path = f"{given['home']}/own.sh"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY, 0o700), "w") as file:
        file.write("#!/bin/sh\nexit 0\n")
    _spawn(path)


def _spawn(program: str, *arguments: str) -> None:
    pid = os.posix_spawn(program, [program, *arguments], {"PATH": os.defpath})
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise OSError(errno.EACCES, "it did not run")


def _pin(given: dict[str, Any]) -> None:
    """Told by what it brought about: the call itself may say that it is done."""
    before = os.sched_getaffinity(given["pid"])
    os.sched_setaffinity(given["pid"], {min(before)})
    if os.sched_getaffinity(given["pid"]) != {min(before)}:
        raise OSError(errno.EPERM, "nothing changed")


def _served(change: Callable[[int], Any]) -> Callable[[dict[str, Any]], None]:
    """A change through a descriptor that is open for reading alone."""

    def probe(given: dict[str, Any]) -> None:
        handle = os.open(given["served"], os.O_RDONLY)
        try:
            change(handle)
        finally:
            os.close(handle)

    return probe


def _map_zeros(given: dict[str, Any]) -> None:
    handle = os.open("/dev/zero", os.O_RDWR)
    try:
        mmap.mmap(handle, 4096, flags=mmap.MAP_SHARED).close()
    finally:
        os.close(handle)


def _open_mode(handle: int) -> None:
    before = os.fstat(handle).st_mode
    os.fchmod(handle, 0o644)  # said to be done, for Triton's sake
    if os.fstat(handle).st_mode == before:
        raise OSError(errno.EPERM, "nothing changed")


_PROBES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "read a secret": lambda given: _read(given["secret"]),
    "list the secrets": lambda given: os.listdir(os.path.dirname(given["secret"])) and None,
    "write a secret": lambda given: os.close(os.open(given["secret"], os.O_WRONLY)),
    "write beside the secrets": lambda given: _write(given["secret"] + ".new"),
    "change a secret's mode": lambda given: os.chmod(given["secret"], 0o600),
    "read another's environment": lambda given: _read(f"/proc/{given['pid']}/environ"),
    "read another's arguments": lambda given: _read(f"/proc/{given['pid']}/cmdline"),
    "signal another": lambda given: os.kill(given["pid"], 0),
    "read another's shared memory": lambda given: _read(given["region"]),
    "connect": lambda given: _connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", given["port"])),
    "connect to itself": lambda given: _connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", given["own_port"])),
    "fast open": _fast_open,
    "datagram": _datagram,
    "unix socket": lambda given: _connect(socket.AF_UNIX, socket.SOCK_STREAM, given["unix"]),
    "abstract socket": lambda given: _connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + given["unix"]),
    "netlink": lambda given: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close(),
    "raw socket": lambda given: _raw_socket(),
    "sctp": lambda given: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).close(),
    "vsock": lambda given: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close(),
    "listen elsewhere": lambda given: _listen(given["free_port"]),
    "listen": lambda given: _listen(given["own_port"]),
    "write what it is served from": lambda given: _write(given["served"]),
    "write to /tmp": lambda given: _write(given["in_tmp"]),
    "execute what it wrote": _execute_own_file,
    "write at home": lambda given: _write(f"{given['home']}/x"),
    "run a shell": lambda given: _spawn("/bin/sh", "-c", "exit 0"),
    "talk to a child": lambda given: _pair(),
    "memory file": lambda given: os.close(os.memfd_create("x")),
    "name its thread": lambda given: os.close(
        os.open(f"/proc/self/task/{threading.get_native_id()}/comm", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    ),
    "sequential socket": lambda given: _sequential().close(),
    "send without connecting": lambda given: _sequential().sendto(b"x", given["unix"]) and None,
    "shared memory in no file": lambda given: mmap.mmap(-1, 4096).close(),
    "shared memory of zeros": _map_zeros,
    "memory like a stack": lambda given: mmap.mmap(
        -1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100
    ).close(),
    "System V memory": lambda given: _make_and_remove(29, 31, 4096),
    "System V semaphores": lambda given: _make_and_remove(64, 66, 1),
    "System V queue": lambda given: _make_and_remove(68, 71),
    "bound another": lambda given: resource.prlimit(given["pid"], resource.RLIMIT_CORE, (0, 0)) and None,
    "pin another": _pin,
    "slow another": lambda given: os.setpriority(os.PRIO_PROCESS, given["pid"], 19),  # nice 10 may be the tests' own
    "schedule another": lambda given: os.sched_setscheduler(given["pid"], os.SCHED_BATCH, os.sched_param(0)),
    "slow another's disk": lambda given: (
        _call(251, 1, given["pid"], 2 << 13 | 7) and None
    ),  # the lowest of the usual class
    "remove another's System V memory": lambda given: _call(31, given["system_v"], 0, 0),
    "bound itself": lambda given: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "pin its own thread": lambda given: os.sched_setaffinity(threading.get_native_id(), os.sched_getaffinity(0)),
    "change a served file's mode": _served(lambda handle: os.fchmod(handle, 0o600)),
    "open a served file to all": _served(_open_mode),
    "change a served file's owner": _served(lambda handle: os.fchown(handle, -1, -1)),
    "change a served file's attributes": _served(lambda handle: os.setxattr(handle, "user.x", b"x")),
    "remove a served file's attributes": _served(lambda handle: os.removexattr(handle, "user.x")),
    "change a served file's times": _served(lambda handle: os.utime(handle, (1, 1))),
    "change a served file's flags": _served(lambda handle: fcntl.ioctl(handle, 0x40086602, bytes(8)) and None),
    "change a served file's generation": _served(lambda handle: fcntl.ioctl(handle, 0x40086604, bytes(8)) and None),
    "lease a served file": _served(lambda handle: fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK) or None),
}


def _open_files() -> int:
    held: list[int] = []
    try:
        while len(held) < 100_000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for one in held:
        os.close(one)
    return len(held)


def _forks(most: int) -> int:
    children: list[int] = []
    try:
        while len(children) < most:
            pid = os.fork()
            if not pid:
                signal.pause()
            children.append(pid)
    except OSError:
        pass
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(children)


def _memory() -> int:
    soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
    most = 4096 if soft == resource.RLIM_INFINITY else soft // _MIB + 256
    held: list[mmap.mmap] = []  # reserved and not touched: the machine running the tests need not have it
    try:
        while len(held) * 64 < most:
            held.append(mmap.mmap(-1, 64 * _MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError:
        pass
    return len(held) * 64


def _shared(given: dict[str, Any]) -> int:
    path, written = Path("/dev/shm") / given["own_region"], 0
    try:
        with path.open("wb", buffering=0) as file:
            while written < given["most_shared"] and file.write(bytes(_MIB)) == _MIB:
                written += 1
    except OSError:
        pass
    path.unlink(missing_ok=True)
    return written


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    answer = bounds(told) if told.get("bounds") else run(told)
    sys.stdout.write(json.dumps(answer))
