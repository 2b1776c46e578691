"""What one sandbox is made of, as the launcher writes it and the sandbox reads it."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parents[4]

#: What a sandbox may be made of; `serving.targets.core.containment` says in words what each is good for.
USER, NAMESPACES, PROC, LANDLOCK, SECCOMP = "user", "namespaces", "proc", "landlock", "seccomp"
#: Reserved for each thread, in bytes, used or not, and counted as memory. It is what glibc takes where no limit is set, and twice what
#: runtimes have on Windows; with the 8 MiB that systems set, stacks would be most of a server's bound.
STACK = 2 << 20
#: To be raised with every change that makes a sandbox tighter: an agent replaces the servers of an earlier edition.
EDITION = 3
#: What every program of the system needs to start. Those that are links (as on a merged /usr) stay links.
SYSTEM = ("/usr", "/lib", "/lib64", "/bin")
#: Not /dev/zero: mapped and shared it is memory in no file, which no bound counts.
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
#: Exit status of a sandbox whose layers this machine does not grant, and of one that failed for another reason, which may pass;
#: env(1) uses them alike.
NOT_GRANTED, FAILED = 126, 125
#: What a kernel says to what it does not grant or does not know. Lack of memory, of space or of processes is none of it.
REFUSALS = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.EUSERS}
)


@dataclass(frozen=True)
class Bounds:
    """The most that a server may take. Sizes in bytes."""

    processes: int  # threads count as processes do. Source: setrlimit(2), RLIMIT_NPROC
    open_files: int  # of one process
    memory: int  # writable private memory of one process, stacks too; 0 for no bound. Source: setrlimit(2), RLIMIT_DATA
    shared_memory: int  # in /dev/shm, where that is its own
    scratch: int  # in its home folder; where that is on the disk, in it and `tmp`, and the shim looks every few seconds
    file: int  # the longest file


@dataclass(frozen=True)
class Spec:
    """One program and what it sees. All paths are absolute, and the same inside as outside.

    `home` and `tmp` are all that it may write. `hidden` has arguments that no other user may read, by their place in `argv`.
    `root` is an empty folder on which a file system of its own is put together. `uid` is who it runs as, 0 for no change.
    """

    layers: tuple[str, ...]
    argv: tuple[str, ...]
    env: dict[str, str]
    home: str
    tmp: str
    root: str
    bounds: Bounds
    read_only: tuple[str, ...] = ()
    devices: tuple[str, ...] = DEVICES
    ports: tuple[int, ...] = ()
    uid: int = 0
    hidden: dict[int, str] = field(default_factory=dict)

    def has(self, layer: str) -> bool:
        return layer in self.layers

    @property
    def has_gpu(self) -> bool:
        """Whether a device of NVIDIA's driver is among the devices."""
        return any(path.startswith("/dev/nvidia") for path in self.devices)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def read(text: str) -> Spec:
    """The spec that `Spec.as_json` gave. Raises ValueError, KeyError, TypeError for anything else."""
    told = json.loads(text)
    for name in ("layers", "argv", "read_only", "devices", "ports"):
        told[name] = tuple(told[name])
    told["bounds"] = Bounds(**told["bounds"])
    told["hidden"] = {int(place): value for place, value in told["hidden"].items()}
    return Spec(**told)


def command(spec_file: Path, report: int) -> list[str]:
    """How to start the sandbox of a spec, in `ENVIRONMENT`. `report` is a descriptor that it inherits."""
    return [sys.executable, "-S", "-m", "serving.targets.agent.sandbox", str(spec_file), str(report)]


#: All that a sandbox inherits. Without `site` (-S) it starts in half the time.
ENVIRONMENT = {"PATH": os.defpath, "PYTHONPATH": str(_PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
