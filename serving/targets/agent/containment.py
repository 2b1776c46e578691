"""Finds out how far this machine can shut a server in, and says what one server may reach."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ledger.adapters.linux_memory import memory_here
from serving.targets.agent import runtime_image, scratch
from serving.targets.agent.sandbox.spec import (
    DEVICES,
    ENVIRONMENT,
    FAILED,
    LANDLOCK,
    NAMESPACES,
    NOT_GRANTED,
    PROC,
    REFUSALS,
    SECCOMP,
    STACK,
    SYSTEM,
    USER,
    Bounds,
    Spec,
    command,
)
from serving.targets.agent.sandbox.system_calls import ARCHITECTURE
from serving.targets.core.containment import Containment

_MIB = 1 << 20
#: User ids for servers where root starts them: above the ranges that systemd hands out, and below 2^31, which some programs take
#: for the end. Source: systemd's UIDS-GIDS.md.
_FIRST_UID, _UIDS = 0x7000_0000, 0x0800_0000
_TRIAL = ".trial-"
#: Pauses before a trial and how long it may take, in seconds, one after the other. A trial takes 0.1 s, and took 20 s on a machine
#: with far more to do than it can.
_TRIALS = ((0.0, 5.0), (1.0, 15.0), (4.0, 45.0))
_ASK_AGAIN_S = 5.0
#: What a program says that may not read what it is made of; the end of anything else tells nothing of the machine.
_CLOSED_TO_IT = re.compile(
    "permission denied|no module named|cannot open shared object file: no such file", re.IGNORECASE
)
#: What it says beside that on a machine that is full: a folder that could not be listed has no modules either.
_FULL = re.compile(
    "too many open files|cannot allocate memory|no space left|resource temporarily unavailable", re.IGNORECASE
)
#: Two models on Triton hold about 105 threads; a runtime starts some for each core.
_PROCESSES, _PROCESSES_PER_CPU = 512, 32
#: Where all of the user's are counted together, servers that start later must find room as well.
_PROCESSES_OF_THE_USER = 4096
_OPEN_FILES = 8192  # a connection is one
_LEAST_MEMORY, _LEAST_SHARED, _SCRATCH, _LONGEST_FILE = 2048 * _MIB, 256 * _MIB, 1024 * _MIB, 4096 * _MIB
#: Best first: what the kernel refuses of one is missing in a later one.
_WAYS = (
    (NAMESPACES, PROC, LANDLOCK, SECCOMP),
    (NAMESPACES, LANDLOCK, SECCOMP),
    (NAMESPACES, PROC, SECCOMP),
    (LANDLOCK, SECCOMP),
    (SECCOMP,),
)
#: What programs look at beside the folders of the system; read-only, and left out where it is not there.
_ALSO_SEEN = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/alternatives",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
)
_GPU_SEEN = ("/proc/driver/nvidia", "/sys/module/nvidia", "/sys/module/nvidia_uvm")


class CannotTell(Exception):
    """Whether this machine grants a sandbox could not be found out now, and why. It is no refusal: nothing is started on it."""


@dataclass(frozen=True)
class Granted:
    """What this machine grants: the layers of its sandboxes, and why a better one was refused (empty for the best)."""

    layers: tuple[str, ...]
    refused: str = ""

    @property
    def tier(self) -> Containment:
        is_contained = not {NAMESPACES, LANDLOCK}.isdisjoint(
            self.layers
        )  # without either, it reads what its user may read
        return Containment.CONTAINED if is_contained else Containment.NOT_CONTAINED

    def facts(self, *, allows_uncontained_code: bool) -> dict[str, Any]:
        """For the node's facts."""
        return {
            "tier": str(self.tier),
            "says": self.tier.sentence,
            "layers": list(self.layers),
            "allows_uncontained_code": allows_uncontained_code,
            **({"refused": self.refused} if self.refused else {}),
        }


def ways(*, is_root: bool) -> Iterator[tuple[str, ...]]:
    """The layers of each sandbox to try here, best first. Root prefers a user of its own for each server.

    Without namespaces that user must be able to pass to the serving environment, so root tries such a sandbox without it too.
    """
    for layers in _WAYS:
        if is_root:
            yield (USER, *layers)
        if not (is_root and NAMESPACES in layers):
            yield layers


def find_granted(venv: Path, servers: Path) -> Granted:
    """Found out by trying, best first: neither a kernel's version nor one call that succeeds tells what the others do.

    Args:
        venv: the serving environment, whose Python is what is tried.
        servers: where servers' folders lie, as a user of its own must be able to pass there.

    Raises CannotTell: poorer layers are taken for a refusal alone, never for a machine that is slow or full.
    """
    if platform.machine() != ARCHITECTURE:
        return Granted((), f"the sandbox is written for {ARCHITECTURE}, and this machine is {platform.machine()}")
    refused, gpus = "", gpus_here()
    for layers in ways(is_root=os.getuid() == 0):
        if gpus and NAMESPACES in layers and PROC not in layers:
            continue  # libcuda starts nowhere without /proc
        trouble = try_layers(layers, venv, servers)
        if not trouble:
            return Granted(layers, refused)
        refused = refused or trouble
    return Granted((), refused)


class Finder:
    """What `find_granted` found, once for all threads of an agent, in a thread of its own: it may take 70 s, and then be no answer.

    What could not be told is asked again, at the next question.
    """

    def __init__(self, venv: Path, servers: Path) -> None:
        self._venv, self._servers = venv, servers
        self._lock = threading.Lock()
        self._found: Granted | None = None
        self._trouble, self._again_at = "it is being found out", 0.0
        self._search: threading.Thread | None = None

    def granted(self, within_s: float | None = None) -> Granted:
        """What is known, or will be within these seconds; None for the whole search. Raises CannotTell."""
        with self._lock:
            if self._search is None and self._found is None and time.monotonic() >= self._again_at:
                self._search = threading.Thread(target=self._find, name="containment", daemon=True)
                self._search.start()
            search = self._search
        if search:
            search.join(within_s)
        with self._lock:
            if self._found is None:
                raise CannotTell(self._trouble)
            return self._found

    def _find(self) -> None:
        found, trouble = None, ""
        try:
            found = find_granted(self._venv, self._servers)
        except Exception as error:  # whatever it is, nothing is started on it
            trouble = str(error) or repr(error)
        with self._lock:
            self._found, self._search = found, None
            self._trouble, self._again_at = trouble, time.monotonic() + _ASK_AGAIN_S


def try_layers(layers: tuple[str, ...], venv: Path, servers: Path) -> str:
    """Starts a Python in such a sandbox: an empty string, or what was refused. Raises CannotTell after several tries."""
    trouble = ""
    for pause_s, most_s in _TRIALS:
        time.sleep(pause_s)
        try:
            return _try_once(layers, venv, servers, most_s)
        except CannotTell as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"no trial could be made: {error}"
    raise CannotTell(f"after {len(_TRIALS)} trials of {' + '.join(layers)}: {trouble}")


def _try_once(layers: tuple[str, ...], venv: Path, servers: Path, most_s: float) -> str:
    servers.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        folder = Path(tempfile.mkdtemp(prefix=_TRIAL, dir=servers)).resolve()
        held.callback(scratch.remove, folder)  # which has parts that may not be ours any more
        python = venv.absolute() / "bin" / "python"
        argv = (str(python), "-I", "-S", "-c", "pass") if python.exists() else ("/bin/true", "hidden")
        spec = spec_for(folder, venv, layers, argv=argv, env={"PATH": os.defpath}, bounds=bounds_of({}, layers))
        try:
            make_folders(spec, folder)
            if not spec.has(NAMESPACES):  # what lies there must be counted later
                scratch.size_on_disk(spec.home, spec.tmp)
        except OSError as error:  # root without the right to give files away, or to look into what it gave
            if error.errno in REFUSALS:
                return f"its folders cannot be given to a user of its own: {error.strerror}"
            raise
        file = folder / "spec.json"
        file.write_text(json.dumps(replace(spec, hidden={len(argv) - 1: argv[-1]}).as_json()))
        try:
            ended = subprocess.run(
                command(file, report=1),
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=most_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CannotTell(f"no end within {most_s:g} s") from error
    if ended.returncode == 0:
        return ""
    words = (ended.stderr.strip().splitlines() or [""])[-1].removeprefix("sandbox: ")
    is_closed = ended.returncode != FAILED and _CLOSED_TO_IT.search(ended.stderr) and not _FULL.search(ended.stderr)
    if ended.returncode == NOT_GRANTED or is_closed:
        return words or f"exit status {ended.returncode}"
    raise CannotTell(words or f"exit status {ended.returncode}")


def is_trial(folder: Path) -> bool:
    """Whether an agent tries a sandbox there just now; what a killed one left is no trial any more."""
    with contextlib.suppress(FileNotFoundError):
        return folder.name.startswith(_TRIAL) and time.time() - folder.stat().st_mtime < 2 * _TRIALS[-1][1]
    return False


def spec_for(
    folder: Path, venv: Path, layers: tuple[str, ...], *, argv: tuple[str, ...], env: dict[str, str], bounds: Bounds
) -> Spec:
    """The sandbox of the server in this folder, but for its ports and secrets. `make_folders` makes what it needs."""
    has_namespaces = NAMESPACES in layers
    gpus = gpus_here()
    # Nothing of the server's folder is seen but what it serves: what it was started with and its log stay outside.
    seen = [*_runtime_paths(venv), *_ALSO_SEEN, *(_GPU_SEEN if gpus else ())]
    home, tmp = folder / "home", folder / "tmp"
    return Spec(
        layers=layers,
        argv=argv,
        env={**env, "HOME": str(home), "TMPDIR": "/tmp" if has_namespaces else str(tmp)},  # noqa: S108 - its own
        home=str(home),
        tmp="/tmp" if has_namespaces else str(tmp),  # noqa: S108 - its own
        root=str(folder / "root"),
        bounds=bounds,
        read_only=(str(folder / "repository"), str(folder / "backends"), *seen),
        devices=(*DEVICES, *gpus),
        uid=uid_of(folder) if USER in layers else 0,
    )


def make_folders(spec: Spec, folder: Path) -> None:
    """The folders that the spec names, open to the user that the server will be and to no other."""
    for path in (spec.home, spec.root, str(folder / "tmp")):
        os.makedirs(path, mode=0o700, exist_ok=True)
    if not spec.has(USER):
        return
    for seen in (folder / "repository", folder / "backends"):
        for below in (seen, *seen.rglob("*")) if seen.exists() else ():
            if below.is_dir() and not below.is_symlink():
                below.chmod(0o755)
            elif below.is_file() and not below.is_symlink() and below.stat().st_mode & 0o004 == 0:
                below.chmod(0o444)
    if not spec.has(NAMESPACES):  # with them, what it sees is put in place before it becomes that user
        folder.parent.chmod(0o711)
        os.chown(folder, -1, spec.uid)
        folder.chmod(0o710)
        for path in (spec.home, spec.tmp):
            os.chown(path, spec.uid, spec.uid)


def bounds_of(envelope: dict[str, Any], layers: tuple[str, ...]) -> Bounds:
    """What a release's server may take: by its envelope where that declares it, otherwise generously.

    The declared least is what the release needs to work at all, so the bound is twice that. Without a declaration a process may
    take half of the machine's memory: enough for one model, and not enough to take the machine down by itself. To both come the
    stacks of as many threads as a server may have, which the kernel counts as reserved and not as used.
    """
    machine = memory_here()
    host = envelope.get("host") or {}
    memory, shared, disk = (
        host.get(f"{name}_mib{least}") for name, least in (("memory", "_min"), ("shm", "_min"), ("disk", ""))
    )
    # Without a user or a user namespace of its own, a server's processes are counted with all of this user's.
    has_own_count = USER in layers or NAMESPACES in layers
    own = _PROCESSES + _PROCESSES_PER_CPU * (os.cpu_count() or 1)
    most_memory = max(2 * memory * _MIB, _LEAST_MEMORY) if memory else machine // 2
    return Bounds(
        processes=own if has_own_count else threads_of(os.getuid()) + _PROCESSES_OF_THE_USER,
        open_files=_OPEN_FILES,
        # CUDA reserves far more addresses than memory: a bound would stop it.
        memory=0 if gpus_here() else most_memory + own * STACK,
        shared_memory=max(2 * shared * _MIB, _LEAST_SHARED) if shared else max(machine // 4, _LEAST_SHARED),
        scratch=max(2 * disk * _MIB, _SCRATCH) if disk else _SCRATCH,
        file=_LONGEST_FILE,
    )


def gpus_here() -> list[str]:
    """The devices of NVIDIA's driver."""
    return sorted(str(path) for path in Path("/dev").glob("nvidia*"))


def threads_of(uid: int) -> int:
    """How many threads of this user run now."""
    count = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == uid:
                count += sum(1 for _ in (path / "task").iterdir())
    return count


def uid_of(folder: Path) -> int:
    """A user for one server: by its folder's name, which no other server has."""
    mapped = _mapped_users()
    number = int.from_bytes(hashlib.sha256(folder.name.encode()).digest()[:8], "big")
    if mapped > _FIRST_UID + _UIDS:
        return _FIRST_UID + number % _UIDS
    return mapped // 2 + number % (mapped // 2) if mapped > 1 else 0


def _mapped_users() -> int:
    """How many user ids there are from 0 on: fewer in a container that has a user namespace of its own."""
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return next((int(count) for first, _, count in ranges if first == "0"), 0)


def _runtime_paths(venv: Path) -> list[str]:
    """The serving environment, the Python that it was made with and folders that its .pth files name, under each of their names."""
    found = [venv.absolute(), venv.resolve()]
    with contextlib.suppress(OSError, runtime_image.RuntimeMissing):
        parts = runtime_image.environment(venv)
        for folder in (*([parts.python_home] if parts.python_home else []), *parts.added_folders):
            found += [folder, folder.resolve()]
    system = tuple(Path(path) for path in SYSTEM)
    return sorted(
        {str(path) for path in found if path != Path("/") and not any(path.is_relative_to(one) for one in system)}
    )
