"""What is found out of a machine: which ways of shutting a server in it grants, whether it is poor, slow or full."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving.targets.agent import containment, server_shim
from serving.targets.agent import launcher as launchers
from serving.targets.agent.node_agent import facts
from serving.targets.agent.sandbox import spec as specs
from serving.targets.agent.sandbox.spec import LANDLOCK, NAMESPACES, PROC, SECCOMP, USER
from serving.targets.core.containment import Containment
from tests.support.rigs.sandbox_rig import NOBODY, ordinary_python

pytestmark = pytest.mark.root_too  # root runs servers in other ways

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
from serving.targets.agent import containment
containment._TRIALS = ((0.0, 30.0), (0.1, 30.0))
try:
    found = containment.find_granted(Path(sys.argv[1]), Path(sys.argv[2]))
    print("+".join(found.layers), found.refused)
except containment.CannotTell as error:
    print("unknown", error)
"""
BEST, LANDLOCKED = (NAMESPACES, PROC, LANDLOCK, SECCOMP), (LANDLOCK, SECCOMP)
_UNSHARE, _MOUNT, _LANDLOCK, _PTRACE = "272", "165", "444,445,446", "101"


@pytest.mark.parametrize(
    ("denied", "wanted"),
    [
        (_UNSHARE, LANDLOCKED),  # a container's seccomp profile
        (_MOUNT, LANDLOCKED),  # Ubuntu 24.04: the user namespace is granted, and no right in it
        (f"{_UNSHARE},{_LANDLOCK}", (SECCOMP,)),  # an old kernel in a container
        (_LANDLOCK, (NAMESPACES, PROC, SECCOMP)),
        (_PTRACE, BEST),  # the secrets of Triton's control are then to be seen; nothing else changes
    ],
)
def test_a_poorer_machine_is_known_for_what_it_is(denied: str, wanted: tuple[str, ...]) -> None:
    layers, refused = found_where(denied, errno.EPERM)
    assert layers == "+".join(wanted)
    assert bool(refused) == (denied != _PTRACE)


@pytest.mark.parametrize(
    ("layers", "is_contained"),
    [
        (BEST, True),
        (LANDLOCKED, True),
        ((USER, LANDLOCK, SECCOMP), True),
        ((NAMESPACES, PROC, SECCOMP), True),
        ((USER, SECCOMP), False),
        ((SECCOMP,), False),
        ((), False),
    ],
)
def test_code_is_contained_where_it_reads_its_own_files_only(layers: tuple[str, ...], is_contained: bool) -> None:
    tier = containment.Granted(layers).tier
    assert tier is (Containment.CONTAINED if is_contained else Containment.NOT_CONTAINED)


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
        changed.setattr(containment, "_ASK_AGAIN_S", 3600.0)
        with pytest.raises(containment.CannotTell, match=r"after 2 trials .* no end within 0.001 s"):
            finder.granted()
    with pytest.raises(containment.CannotTell, match="after 2 trials"):  # not at once again
        finder.granted()
    finder._again_at = 0.0
    assert finder.granted() == containment.find_granted(Path("/nowhere"), tmp_path)


class Search:
    """A search for what is granted that ends when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._may_end, self._answer = 0, threading.Event(), containment.Granted((SECCOMP,))
        monkeypatch.setattr(containment, "find_granted", self._search)

    def end(self) -> containment.Granted:
        self._may_end.set()
        return self._answer

    def _search(self, venv: Path, servers: Path) -> containment.Granted:
        self.begun += 1
        assert self._may_end.wait(60)
        return self._answer


def test_nobody_waits_for_a_long_search_who_need_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, finder = Search(monkeypatch), containment.Finder(Path("/nowhere"), tmp_path)
    for _ in range(3):
        with pytest.raises(containment.CannotTell, match="being found out"):
            finder.granted(0.0)
    with ThreadPoolExecutor() as others:
        waiting = [others.submit(finder.granted) for _ in range(3)]
        found = search.end()
        assert [one.result(30) for one in waiting] == [found] * 3
    assert finder.granted(0.0) == found and search.begun == 1


def test_a_node_tells_of_itself_and_takes_its_servers_back_during_a_long_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(monkeypatch)
    monkeypatch.setattr(launchers, "FOUND_OUT_S", 0.1)
    launcher = launchers.LocalLauncher(servers=tmp_path, venv=Path("/nowhere"), blobs=None)  # type: ignore[arg-type]
    folder, launch = tmp_path / "server", {"secret": "x", "sandbox": specs.EDITION}
    folder.mkdir()
    (folder / server_shim.LAUNCH_FILE).write_text(json.dumps(launch))
    for layers, is_taken in (([SECCOMP], True), ([], False)):
        (folder / server_shim.SANDBOX_FILE).write_text(json.dumps({"layers": layers}))
        assert launcher._is_shut_in_as_today(folder) == is_taken
    assert facts(launcher)["containment"]["tier"] == "unknown"
    search.end()
    assert launcher.containment(within_s=30)["tier"] == Containment.NOT_CONTAINED


def test_a_program_that_ended_wrong_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(containment.CannotTell, match="exit status 3"):
        containment._try_once((SECCOMP,), tmp_path, tmp_path / "servers", 30.0)


@pytest.mark.parametrize(
    ("words", "is_refusal"),
    [
        ("python: error while loading shared libraries: x.so: cannot open shared object file: Permission denied", True),
        (
            "python: error while loading shared libraries: x.so: cannot open shared object file: No such file or directory",
            True,
        ),
        ("ModuleNotFoundError: No module named 'encodings'", True),
        ("x.so: cannot open shared object file: Too many open files in system", False),
        ("x.so: cannot open shared object file: Cannot allocate memory", False),
        ("OSError: [Errno 23] Too many open files in system\nModuleNotFoundError: No module named 'encodings'", False),
    ],
)
def test_only_what_is_closed_to_a_program_is_a_refusal(tmp_path: Path, words: str, is_refusal: bool) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{words}\nEND\nexit 127\n")
    python.chmod(0o755)
    last = words.splitlines()[-1]
    if is_refusal:
        assert containment._try_once((SECCOMP,), tmp_path, tmp_path / "servers", 30.0) == last
    else:
        with pytest.raises(containment.CannotTell, match=last[-20:]):
            containment._try_once((SECCOMP,), tmp_path, tmp_path / "servers", 30.0)


_OTHERS = "-all,+setuid,+setgid,+chown"


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("kept", "has_users"),
    [
        ("-all", False),
        ("-all,+setuid,+setgid", False),
        (_OTHERS, False),  # it could not look into what it gave away
        (f"{_OTHERS},+dac_override", False),  # nor end what runs as another user
        (f"{_OTHERS},+dac_override,+kill", True),
    ],
)
def test_roots_without_rights_have_what_an_ordinary_user_has(kept: str, has_users: bool) -> None:
    """As with `--cap-drop=ALL`: what the agent itself may not do for a way is that way's refusal, and no reason to wait."""
    setpriv = shutil.which("setpriv")
    if not setpriv:
        pytest.skip("setpriv(1), which gives rights up, is not here")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o711)  # other users pass through it
        told = [setpriv, f"--bounding-set={kept}", "--inh-caps=-all", sys.executable, "-c", FINDS, "/nowhere", name]
        environment = {**specs.ENVIRONMENT, "PYTHONPATH": str(Path(containment.__file__).parents[3])}
        ended = subprocess.run(told, capture_output=True, text=True, env=environment, timeout=150, check=False)
    wanted, _ = found_where(_UNSHARE, errno.EPERM)  # who may not make namespaces either
    if has_users:
        wanted = f"{USER}+{wanted}"
    assert ended.stdout.split()[:1] == [wanted], ended.stdout + ended.stderr


def found_where(denied: str, answer: int) -> tuple[str, str]:
    """The layers, and why better ones were refused, if a filter answers so to these system calls. An ordinary user's: root has others."""
    python = ordinary_python()
    if not python:
        pytest.skip("there is no Python that an ordinary user can start")
    who: dict[str, Any] = {} if os.getuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        told = [python, "-c", DENIES, denied, str(answer), python, "-S", "-c", FINDS, "/nowhere", f"{name}/servers"]
        ended = subprocess.run(
            told, capture_output=True, text=True, env=specs.ENVIRONMENT, cwd="/", timeout=150, check=False, **who
        )
    layers, _, told = ended.stdout.strip().partition(" ")
    assert layers, ended.stderr
    return layers, told


def test_folders_that_the_environments_pth_files_name_are_seen(tmp_path: Path) -> None:
    """As `pip install --editable` and a shared folder of packages have them. Lines that are code are none."""
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    backend = site / "pytriton" / "tritonserver" / "backends" / "python"
    stub = site / "pytriton" / "tritonserver" / "python_backend_stubs" / "3.11" / "triton_python_backend_stub"
    server = site / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    parts = (server, backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub)
    for part in parts:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "shared").mkdir()
    lines = [
        "# a comment",
        "import sys; sys.path.append('/root')",
        str(tmp_path / "shared"),
        str(tmp_path / "gone"),
        "",
    ]
    (site / "machine.pth").write_text("\n".join(lines))
    bounds = containment.bounds_of({}, ())
    spec = containment.spec_for(tmp_path / "server", tmp_path / "venv", (), argv=("/bin/true",), env={}, bounds=bounds)
    outside = [path for path in spec.read_only if path.startswith(str(tmp_path)) and "/server/" not in path]
    assert outside == [str(tmp_path / "shared"), str(tmp_path / "venv")]
