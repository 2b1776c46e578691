"""A machine worth attacking, for programs in the sandbox: its secrets, its processes and doors, and what each of them must meet."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from serving.targets.agent import containment
from serving.targets.agent.sandbox import spec as specs
from serving.targets.agent.sandbox.landlock import version
from serving.targets.agent.sandbox.spec import LANDLOCK, NAMESPACES, PROC, SECCOMP, USER, Bounds, Spec

NOBODY = 65_534
MIB = 1 << 20
PROBES = Path(__file__).parents[2] / "contracts" / "sandbox_probes.py"
BOUNDS = Bounds(processes=80, open_files=128, memory=512 * MIB, shared_memory=32 * MIB, scratch=16 * MIB, file=64 * MIB)
#: Threads that other workers of the same user may start during a probe. The kernel counts them under the same limit.
OTHERS_START = 400

REFUSED_BY_SECCOMP = {
    **dict.fromkeys(("connect", "connect to itself", "fast open"), "EPERM"),
    **dict.fromkeys(("datagram", "unix socket", "abstract socket", "netlink", "raw socket", "sctp", "vsock"), "EACCES"),
    **dict.fromkeys(("sequential socket", "send without connecting"), "EACCES"),
    **dict.fromkeys(("ptrace", "unshare", "keyctl", "bpf", "userfaultfd", "io_uring", "perf_event_open"), "EPERM"),
    **dict.fromkeys(("mount", "setns", "process_vm_readv", "memory file"), "EPERM"),
    **dict.fromkeys(("System V memory", "System V semaphores", "System V queue", "remove a POSIX queue"), "EPERM"),
    **dict.fromkeys(("quotactl_fd", "remove another's System V memory"), "EPERM"),
    **dict.fromkeys(("shared memory in no file", "memory like a stack"), "ENOMEM"),
}
ALWAYS = dict.fromkeys(
    ("listen", "write at home", "run a shell", "talk to a child", "bound itself", "pin its own thread"),
    "yes",
)
TO_ANOTHER = (
    *("bound another", "slow another", "schedule another", "slow another's disk"),
    *(("pin another",) if len(os.sched_getaffinity(0)) > 1 else ()),
)
NOT_BY_MOUNT = ("open a served file to all", "lease a served file", "change a served file's generation")
TO_ITS_RELEASE = (
    *("change a served file's mode", "change a served file's owner"),
    *("change a served file's attributes", "remove a served file's attributes", "change a served file's times"),
    "change a served file's flags",
)


@cache
def ordinary_python() -> str:
    """A Python that an ordinary user can start, which root's own need not be. Empty where there is none."""
    if os.getuid():
        return os.path.realpath(sys.executable)
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if not subprocess.run([python, "-c", "pass"], user=NOBODY, group=NOBODY, check=False).returncode:
                return python
    return ""


@dataclass
class Ground:
    """What is worth having on a machine: a secret, another process, another server's memory, doors that are open."""

    folder: Path
    is_root: bool
    facts: dict[str, Any]
    python: str

    @property
    def identity(self) -> dict[str, Any]:
        """Who starts the sandbox."""
        return {} if self.is_root or os.getuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    def spec(self, layers: tuple[str, ...], argv: tuple[str, ...], **changes: Any) -> Spec:
        folder = self.folder / "server"
        has_own = NAMESPACES in layers
        owner = NOBODY if self.identity else os.getuid()
        beside = 0 if has_own or USER in layers else containment.threads_of(owner) + OTHERS_START
        made = Spec(
            layers=layers,
            argv=argv,
            env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
            home=str(folder / "home"),
            tmp="/tmp" if has_own else str(folder / "tmp"),
            root=str(folder / "root"),
            bounds=replace(BOUNDS, processes=BOUNDS.processes + beside),
            read_only=(str(folder / "repository"), str(Path(self.python).resolve().parents[1])),
            ports=(self.facts["own_port"],),
            uid=containment.uid_of(folder) if USER in layers else 0,
        )
        return replace(made, **changes)

    def start(self, spec: Spec, **how: Any) -> subprocess.Popen[str]:
        containment.make_folders(spec, self.folder / "server")
        file = self.folder / "spec.json"
        file.write_text(json.dumps(spec.as_json()))
        file.chmod(0o644)
        if self.identity:
            for name in ("home", "root", "tmp"):
                os.chown(self.folder / "server" / name, NOBODY, NOBODY)
        command = [self.python, *specs.command(file, how.pop("report", 2))[1:]]
        return subprocess.Popen(command, env=specs.ENVIRONMENT, text=True, **how, **self.identity)

    def run(self, spec: Spec) -> subprocess.CompletedProcess[str]:
        with self.start(spec, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            said, complained = process.communicate(timeout=150)
        return subprocess.CompletedProcess([], process.returncode, said, complained)

    def probe(self, layers: tuple[str, ...], *, has_gpu: bool = False, **more: Any) -> dict[str, Any]:
        program = str(self.folder / "server" / "repository" / PROBES.name)
        spec = self.spec(layers, (), **({"devices": (*specs.DEVICES, "/dev/nvidiactl")} if has_gpu else {}))
        told = json.dumps({**self.facts, "processes": spec.bounds.processes, **more})
        ended = self.run(replace(spec, argv=(self.python, "-I", "-S", program, told)))
        assert ended.returncode == 0, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout)
        return answer


def system_v_memory(owner: int, held: contextlib.ExitStack) -> int:
    """The number of a segment that this user owns, as PostgreSQL has one. Source: sys/ipc.h, bits/types/struct_shmid_ds.h."""
    libc, (remove, change, look) = ctypes.CDLL(None), (0, 1, 2)
    number = int(libc.shmget(0, 4096, 0o1600))
    held.callback(lambda: libc.shmctl(number, remove, None))
    told = ctypes.create_string_buffer(512)
    assert libc.shmctl(number, look, told) == 0
    struct.pack_into("II", told, 4, owner, owner)
    assert libc.shmctl(number, change, told) == 0
    return number


@contextlib.contextmanager
def ground(is_root: bool) -> Iterator[Ground]:
    python = ordinary_python() or (os.path.realpath(sys.executable) if is_root else "")
    if not python:
        pytest.skip("there is no Python that an ordinary user can start")
    # Not in /tmp: what has a name there can be listed through Landlock, since Triton must have rights on /tmp itself.
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-ground-", dir="/var/tmp"))
    owner, group = (NOBODY, NOBODY) if os.getuid() == 0 and not is_root else (os.getuid(), os.getgid())
    folder.chmod(0o711)
    region = Path("/dev/shm") / f"sgother_{folder.name}"
    (folder / "secrets").mkdir(mode=0o700)
    (folder / "server" / "repository").mkdir(parents=True)
    (folder / "secrets" / "key").write_text("the key")
    region.write_text("what another release was asked")
    shutil.copy(PROBES, folder / "server" / "repository")
    (folder / "server" / "repository" / "model.py").write_text("what is served")
    (folder / "server" / "repository" / "model.py").chmod(0o640)
    for path in (folder / "secrets", folder / "secrets" / "key", region, *(folder / "server").rglob("*")):
        os.chown(path, owner, group)
    for path in (folder / "secrets" / "key", region):
        path.chmod(0o600)
    os.chown(folder / "server", owner, group)
    with contextlib.ExitStack() as held:
        as_owner = {"user": owner, "group": group} if os.getuid() != owner else {}
        victim = subprocess.Popen(["/bin/sleep", "600"], env={"SECRET": "x"}, **as_owner)  # type: ignore[call-overload]
        held.callback(lambda: (victim.kill(), victim.wait()))
        doors = {name: held.enter_context(socket.socket()) for name in ("port", "own_port", "free_port")}
        for door in doors.values():
            door.bind(("127.0.0.1", 0))
        facts: dict[str, Any] = {name: door.getsockname()[1] for name, door in doors.items()}
        doors["port"].listen()
        for name in ("own_port", "free_port"):
            doors[name].close()
        unix = str(folder / "socket")
        for address in (unix, "\0" + unix):
            listener = held.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        os.chmod(unix, 0o777)
        facts |= {
            "secret": str(folder / "secrets" / "key"),
            "pid": victim.pid,
            "region": str(region),
            "unix": unix,
            "system_v": system_v_memory(owner, held),
            "served": str(folder / "server" / "repository" / "model.py"),
            "in_tmp": f"/tmp/sluicegate-probe-{folder.name}",
            "home": str(folder / "server" / "home"),
            "own_region": f"sgown_{folder.name}",
            "most_shared": 48,
        }
        held.callback(lambda: Path(facts["in_tmp"]).unlink(missing_ok=True))
        try:
            yield Ground(folder, is_root, facts, python)
        finally:
            region.unlink()
            shutil.rmtree(folder)


def expected(layers: tuple[str, ...], is_root: bool = False, *, has_gpu: bool = False) -> dict[str, set[str]]:
    """What each probe must meet. Landlock's rules for ports and signals came with later kernels than those for files."""
    has_ports, has_signals = version() >= 4, version() >= 6
    found = {name: {answer} for name, answer in ALWAYS.items()}
    if SECCOMP in layers:
        found |= {name: {answer} for name, answer in REFUSED_BY_SECCOMP.items()}
    files = ("read a secret", "list the secrets", "write a secret", "write beside the secrets")
    others = ("read another's environment", "read another's arguments")
    if NAMESPACES in layers:
        found |= {name: {"ENOENT"} for name in (*files, *others, "read another's shared memory")}
        found |= {
            "signal another": {"ESRCH"},
            "write what it is served from": {"EROFS"},
            "execute what it wrote": {"EACCES"},
        }
        found |= {"write to /tmp": {"yes"}, "change a secret's mode": {"ENOENT"}}  # /tmp is its own
    elif LANDLOCK in layers:
        found |= {name: {"EACCES"} for name in (*files, *others, "write to /tmp", "execute what it wrote")}
        found |= {"write what it is served from": {"EACCES"}, "change a secret's mode": {"EPERM"}}
        found |= {"signal another": {"EPERM"} if has_signals or USER in layers else {"yes"}}
        found |= {"read another's shared memory": {"EACCES"} if USER in layers else {"yes"}}
    elif SECCOMP in layers:
        found |= {"change a secret's mode": {"EPERM"}}
    if NAMESPACES in layers:
        found |= {name: {"ESRCH"} for name in TO_ANOTHER} | {name: {"EROFS"} for name in TO_ITS_RELEASE}
        found |= {"open a served file to all": {"EPERM"}, "shared memory of zeros": {"ENOENT"}}
    elif SECCOMP in layers:
        found |= {name: {"EPERM"} for name in (*TO_ANOTHER, *TO_ITS_RELEASE, *NOT_BY_MOUNT)}
        found |= {"shared memory of zeros": {"EACCES"} if LANDLOCK in layers else {"yes"}}
    else:
        found |= {
            name: {"yes"} for name in (*TO_ANOTHER, "remove another's System V memory", "change a served file's times")
        }
    if not {NAMESPACES, LANDLOCK} & set(layers):  # what a waiver calls a danger must be one
        open_to_it = ("read another's arguments", "write to /tmp")
        if USER in layers:
            found |= {
                name: {"EACCES"} for name in (*files, "read another's environment", "read another's shared memory")
            }
            found |= {"signal another": {"EPERM"}}
        else:  # root's environment is kept by the capabilities that a server of root's has not
            found |= {"read another's environment": {"EACCES"} if is_root else {"yes"}}
            open_to_it += (*files, "signal another", "read another's shared memory")
        found |= {name: {"yes"} for name in open_to_it}
    if LANDLOCK in layers and has_ports:
        found |= {"listen elsewhere": {"EACCES"}}
    found |= {"name its thread": {"EACCES"} if LANDLOCK in layers else {"yes"}}
    if has_gpu:
        found |= {"name its thread": {"yes"}, "sequential socket": {"yes"}, "shared memory in no file": {"yes"}}
        found |= {"send without connecting": {"ENOTCONN"}}
    if NAMESPACES in layers and PROC not in layers:
        found |= {"name its thread": {"EROFS", "ENOENT", "EACCES"}}
    return found
