"""The sandbox, attacked from inside: what each way of shutting a server in keeps from it, and that nothing of it stays behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from serving.agent import containment
from serving.agent.sandbox import spec as specs
from serving.agent.sandbox.landlock import version
from serving.agent.sandbox.spec import LANDLOCK, NAMESPACES, PROC, SECCOMP, USER, Bounds, Spec
from serving.core.containment import Containment

NOBODY = 65_534
_MIB = 1 << 20
PROBES = Path(__file__).with_name("sandbox_probes.py")
BOUNDS = Bounds(
    processes=80, open_files=128, memory=512 * _MIB, shared_memory=32 * _MIB, scratch=16 * _MIB, file=64 * _MIB
)
#: Every way that an agent may choose, and whether root starts it.
WAYS = {
    f"{'root' if is_root else 'anybody'}: {', '.join(layers) or 'nothing'}": (layers, is_root)
    for ways, is_root in ((containment.AS_ROOT, True), ((*containment.AS_ANYBODY, ()), False))
    for layers in ways
}


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
        counted = 0 if has_own or USER in layers else containment.threads_of(NOBODY if self.identity else os.getuid())
        made = Spec(
            layers=layers,
            argv=argv,
            env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
            home=str(folder / "home"),
            tmp="/tmp" if has_own else str(folder / "tmp"),
            root=str(folder / "root"),
            bounds=replace(BOUNDS, processes=BOUNDS.processes + counted),
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
            said, complained = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, said, complained)

    def probe(self, layers: tuple[str, ...], **more: Any) -> dict[str, Any]:
        program = str(self.folder / "server" / "repository" / PROBES.name)
        told = json.dumps({**self.facts, **more})
        ended = self.run(self.spec(layers, (self.python, "-I", "-S", program, told)))
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
    owner = NOBODY if os.getuid() == 0 and not is_root else os.getuid()
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
        os.chown(path, owner, owner)
    for path in (folder / "secrets" / "key", region):
        path.chmod(0o600)
    os.chown(folder / "server", owner, owner)
    with contextlib.ExitStack() as held:
        as_owner = {"user": owner, "group": owner} if os.getuid() != owner else {}
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
            "most_processes": 1000,
        }
        held.callback(lambda: Path(facts["in_tmp"]).unlink(missing_ok=True))
        try:
            yield Ground(folder, is_root, facts, python)
        finally:
            region.unlink()
            shutil.rmtree(folder)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shut_in(way: str) -> Iterator[tuple[Ground, tuple[str, ...]]]:
    """The ground, and the layers of the way; left out where this machine does not grant them."""
    layers, is_root = WAYS[way]
    if is_root and os.getuid():
        pytest.skip("only root starts servers as other users")
    with ground(is_root) as found:
        ended = found.run(found.spec(layers, ("/bin/true",)))
        if ended.returncode == specs.NOT_GRANTED:
            pytest.skip(f"this machine does not grant {way}: {ended.stderr.strip()}")
        assert ended.returncode == 0, ended.stderr
        yield found, layers


REFUSED_BY_SECCOMP = {
    **dict.fromkeys(("connect", "connect to itself", "fast open"), "EPERM"),
    **dict.fromkeys(("datagram", "unix socket", "abstract socket", "netlink", "raw socket", "sctp", "vsock"), "EACCES"),
    **dict.fromkeys(("ptrace", "unshare", "keyctl", "bpf", "userfaultfd", "io_uring", "perf_event_open"), "EPERM"),
    **dict.fromkeys(("mount", "setns", "process_vm_readv", "memory file"), "EPERM"),
    "shared memory in no file": "ENOMEM",
}
ALWAYS = dict.fromkeys(
    ("listen", "write at home", "run a shell", "talk to a child", "bound itself", "pin its own thread"),
    "yes",
)
TO_ANOTHER = (
    *("bound another", "slow another", "schedule another", "slow another's disk"),
    *(("pin another",) if len(os.sched_getaffinity(0)) > 1 else ()),
)
NOT_BY_MOUNT = ("open a served file to all", "lease a served file")
TO_ITS_RELEASE = (
    *("change a served file's mode", "change a served file's owner"),
    *("change a served file's attributes", "remove a served file's attributes", "change a served file's times"),
    "change a served file's flags",
)


def expected(layers: tuple[str, ...], is_root: bool = False) -> dict[str, set[str]]:
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
        found |= {"remove another's System V memory": {"EINVAL"}, "open a served file to all": {"EPERM"}}
    elif SECCOMP in layers:
        found |= {name: {"EPERM"} for name in (*TO_ANOTHER, *TO_ITS_RELEASE, *NOT_BY_MOUNT)}
        found |= {"remove another's System V memory": {"EPERM"}}
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
    return found


def test_what_hostile_code_reaches(shut_in: tuple[Ground, tuple[str, ...]]) -> None:
    found, layers = shut_in
    answers = found.probe(layers)
    wanted = expected(layers, found.is_root)
    assert {name: answers[name] for name in wanted if answers[name] not in wanted[name]} == {}
    if PROC in layers:
        assert answers["pids"] <= 3
    if NAMESPACES in layers:
        assert not Path(found.facts["in_tmp"]).exists()
        assert list((found.folder / "server" / "home").iterdir()) == []  # its home was memory
    assert Path(found.facts["secret"]).read_text() == ("the key")


def test_how_much_hostile_code_takes(shut_in: tuple[Ground, tuple[str, ...]]) -> None:
    found, layers = shut_in
    got = found.probe(layers, bounds=True)
    assert got["open_files"] < BOUNDS.open_files and got["memory"] <= BOUNDS.memory // _MIB
    if USER in layers or NAMESPACES in layers or not found.is_root:  # the kernel counts no processes of root
        most = BOUNDS.processes + 50  # without a count of its own, the user's other processes come and go
        assert got["processes"] <= most
    if NAMESPACES in layers:
        assert got["processes"] < BOUNDS.processes and got["shared_memory"] <= BOUNDS.shared_memory // _MIB


THREADS = """
import sys, threading
end, begun = threading.Event(), 0
try:
    while begun < int(sys.argv[1]):
        threading.Thread(target=end.wait).start()
        begun += 1
except RuntimeError:
    pass
print(begun)
end.set()
"""


def test_all_threads_that_a_server_may_have_find_room_in_its_memory(shut_in: tuple[Ground, tuple[str, ...]]) -> None:
    found, layers = shut_in
    bounds = containment.bounds_of({"host": {"memory_mib_min": 1}}, layers)
    wanted = containment.bounds_of({}, (NAMESPACES,)).processes - 8
    ended = found.run(found.spec(layers, (found.python, "-I", "-S", "-c", THREADS, str(wanted)), bounds=bounds))
    assert ended.stdout.strip() == str(wanted), ended.stderr


def test_hidden_arguments_arrive_and_nobody_sees_them(shut_in: tuple[Ground, tuple[str, ...]]) -> None:
    found, layers = shut_in
    code = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(60)"
    spec = found.spec(layers, (found.python, "-I", "-S", "-c", code, "open", "s3cret", "end"), hidden={6: "s3cret"})
    read, write = os.pipe()
    with found.start(spec, stdout=subprocess.PIPE, report=write, pass_fds=[write]) as process:
        os.close(write)
        assert process.stdout and process.stdout.readline() == "['open', 's3cret', 'end']\n"
        pid = int(os.read(read, 20))
        os.close(read)
        shown = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"s3cret" not in shown and b"(hidden)\0end" in shown
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists() and not _is_over(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _is_over(pid)  # whoever starts a server takes it along


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_as_its_program_ends(shut_in: tuple[Ground, tuple[str, ...]], number: signal.Signals) -> None:
    found, layers = shut_in
    assert found.run(found.spec(layers, ("/bin/sh", "-c", "exit 7"))).returncode == 7
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); print(1, flush=True); time.sleep(60)"
    read, write = os.pipe()
    spec = found.spec(layers, (found.python, "-I", "-S", "-c", code))
    with found.start(spec, stdout=subprocess.PIPE, report=write, pass_fds=[write]) as process:
        os.close(write)
        assert process.stdout and process.stdout.readline() == "1\n"
        pid = int(os.read(read, 20))
        os.close(read)
        if number == signal.SIGTERM:
            process.terminate()  # handed on
        else:
            os.kill(pid, number)
        assert process.wait(10) == (3 if number == signal.SIGTERM else -signal.SIGKILL)


DENIES = """
import ctypes, os, struct, sys
step = lambda code, value, yes=0, no=0: struct.pack("HBBI", code, yes, no, value)
code = [step(0x20, 0)]
for number in map(int, sys.argv[1].split(",")):
    code += [step(0x15, number, 0, 1), step(6, 0x50000 | int(sys.argv[2]))]
code.append(step(6, 0x7FFF0000))
text = ctypes.create_string_buffer(b"".join(code))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
if libc.prctl(22, 2, struct.pack("HxxxxxxQ", len(code), ctypes.addressof(text)), 0, 0):
    sys.exit("no seccomp here")
os.execv(sys.argv[3], sys.argv[3:])
"""
FINDS = """
import sys
from pathlib import Path
from serving.agent import containment
containment._TRIALS = ((0.0, 30.0), (0.1, 30.0))
try:
    found = containment.find_granted(Path(sys.argv[1]), Path(sys.argv[2]))
    print(found.tier, found.refused)
except containment.CannotTell as error:
    print("unknown", error)
"""
_UNSHARE, _MOUNT, _LANDLOCK, _PTRACE = "272", "165", "444,445,446", "101"


@pytest.mark.parametrize(
    ("denied", "wanted"),
    [
        (_UNSHARE, Containment.LANDLOCK),  # a container's seccomp profile
        (_MOUNT, Containment.LANDLOCK),  # Ubuntu 24.04: the user namespace is granted, and no right in it
        (f"{_UNSHARE},{_LANDLOCK}", Containment.SECCOMP),  # an old kernel in a container
        (_LANDLOCK, Containment.NAMESPACES),
        (_PTRACE, Containment.NAMESPACES),  # the secrets of Triton's control are then to be seen; nothing else changes
    ],
)
def test_a_poorer_machine_is_known_for_what_it_is(denied: str, wanted: Containment) -> None:
    tier, refused = found_where(denied, errno.EPERM)
    assert tier == wanted
    assert bool(refused) == (denied != _PTRACE)


@pytest.mark.parametrize("lack", [errno.EAGAIN, errno.ENOMEM, errno.ENOSPC])
@pytest.mark.parametrize("denied", [_UNSHARE, _MOUNT, _LANDLOCK])
def test_a_full_machine_is_not_taken_for_a_poor_one(denied: str, lack: int) -> None:
    if Path("/proc/sys/user/max_user_namespaces").read_text().strip() == "0":
        pytest.skip("user namespaces are switched off here, which the kernel words as lack of space")
    tier, why = found_where(denied, lack)
    assert tier == "unknown" and "after 2 trials" in why and f"[Errno {lack}]" in why


def test_a_slow_machine_is_not_taken_for_a_poor_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = containment.Finder(Path("/nowhere"), tmp_path)
    with monkeypatch.context() as changed:
        changed.setattr(containment, "_TRIALS", ((0.0, 0.001), (0.1, 0.001)))
        changed.setattr(containment, "_ASK_AGAIN_S", 1.0)
        with pytest.raises(containment.CannotTell, match=r"after 2 trials .* no end within 0.001 s"):
            finder.granted()
    with pytest.raises(containment.CannotTell, match="after 2 trials"):  # not at once again
        finder.granted()
    time.sleep(1.0)
    assert finder.granted() == containment.find_granted(Path("/nowhere"), tmp_path)


def test_a_program_that_ended_wrong_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(containment.CannotTell, match="exit status 3"):
        containment._try_once((SECCOMP,), tmp_path, tmp_path / "servers", 30.0)


def found_where(denied: str, answer: int) -> tuple[str, str]:
    """The tier and what is told beside it, where a filter answers so to these system calls. As an ordinary user: root has other ways."""
    python = ordinary_python()
    if not python:
        pytest.skip("there is no Python that an ordinary user can start")
    who: dict[str, Any] = {} if os.getuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        told = [python, "-c", DENIES, denied, str(answer), python, "-S", "-c", FINDS, "/nowhere", f"{name}/servers"]
        ended = subprocess.run(
            told, capture_output=True, text=True, env=specs.ENVIRONMENT, cwd="/", timeout=60, check=False, **who
        )
    tier, _, told = ended.stdout.strip().partition(" ")
    assert tier, ended.stderr
    return tier, told
