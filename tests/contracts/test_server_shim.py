"""The shim without a real server: what a server's code does against being counted, removed and ended with it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.adapters.linux_processes import is_running, started_at_ticks
from serving.targets.agent import containment, scratch, server_log, server_shim, shim_record
from serving.targets.agent.log_tail import end_of
from serving.targets.agent.sandbox.spec import ENVIRONMENT, LANDLOCK, SECCOMP, Bounds
from tests.support.rigs.sandbox_rig import NOBODY, ordinary_python

pytestmark = pytest.mark.root_too  # root runs servers in other ways

_MIB = 1 << 20
BOUNDS = Bounds(processes=4096, open_files=512, memory=0, shared_memory=64 * _MIB, scratch=8 * _MIB, file=64 * _MIB)
#: Twice a fork and a session of its own in between, as daemons begin; its process id is told in a file.
DAEMON = """
import os, sys, time
def daemon():
    if os.fork():
        return os.wait()
    os.setsid()
    if os.fork():
        os._exit(0)
    with open("pid.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.new", "pid")
    time.sleep(600)
    os._exit(0)
daemon()
"""
ENDS = f"{DAEMON}while not os.path.exists('pid'): time.sleep(0.01)\nwhile not os.path.exists('end'): time.sleep(0.01)\n"
HIDES = """
import os, time
os.mkdir("hidden")
os.chdir("hidden")
with open("much", "wb") as file:
    file.write(bytes(1 << 20))
os.chdir("..")
os.mkdir("closed", 0o300)
os.rename("hidden", "closed/hidden")
time.sleep(600)
"""


@dataclass
class Kept:
    """A shim that keeps a Python program in the place of a server."""

    folder: Path
    shim: subprocess.Popen[bytes]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def log(self) -> str:
        return (self.folder / server_shim.LOG_FILE).read_text()


@pytest.fixture(params=[(LANDLOCK, SECCOMP), (SECCOMP,), ()], ids=lambda layers: ", ".join(layers) or "nothing")
def keep(request: pytest.FixtureRequest) -> Iterator[Callable[..., Kept]]:
    """Starts a shim. Without a process table of its own: with one, the kernel ends what is left."""
    layers, started = request.param, []
    python = ordinary_python()
    if not python:
        pytest.skip("there is no Python that an ordinary user can start")
    # As nobody where root runs the tests: root lists a folder whatever its mode.
    who = {} if os.getuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="sluicegate-shim-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "server"
        folder.mkdir()

        def start(code: str) -> Kept:
            venv = Path(python).parents[1]
            argv = (python, "-I", "-S", "-c", code)
            spec = containment.spec_for(folder, venv, layers, argv=argv, env={}, bounds=BOUNDS)
            containment.make_folders(spec, folder)
            launch = {
                "shm_prefix": "sgshimtest_",
                "lock": "",
                "host": "",
                "ports": {},
                "deployment_id": 1,
                "digest": "",
            }
            for file, told in ((server_shim.SANDBOX_FILE, spec.as_json()), (server_shim.LAUNCH_FILE, launch)):
                (folder / file).write_text(json.dumps(told))
            for path in (folder, *folder.rglob("*")):
                os.chown(path, *(NOBODY, NOBODY) if who else (-1, -1))
            command = [python, "-S", "-c", LOOKS_OFTEN, str(folder)]
            shim = subprocess.Popen(command, cwd="/", env=ENVIRONMENT, stderr=subprocess.PIPE, **who)
            started.append(shim)
            return Kept(folder, shim)

        yield start
        for shim in started:
            shim.kill()
            shim.communicate()
        scratch.remove(folder)


LOOKS_OFTEN = """
import sys
from pathlib import Path
from serving.targets.agent import server_shim
server_shim._LOOK_EVERY_S = 0.2
sys.exit(server_shim.keep(Path(sys.argv[1])))
"""


def eventually(condition: Callable[[], bool], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("is_asked", [True, False], ids=["stopped", "ended by itself"])
def test_a_daemon_ends_with_its_server(keep: Callable[..., Kept], is_asked: bool) -> None:
    kept = keep(ENDS)
    assert eventually((kept.home / "pid").exists), kept.shim.stderr and kept.shim.stderr.read()
    pid = int((kept.home / "pid").read_text())
    ticks = started_at_ticks(pid)
    assert ticks is not None
    if is_asked:
        kept.shim.send_signal(signal.SIGTERM)
    else:
        (kept.home / "end").touch()
    assert kept.shim.wait(30) == (0 if is_asked else 1)
    left = is_running(pid, ticks)
    if left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_what_a_server_hides_on_the_disk_ends_it_and_is_removed(keep: Callable[..., Kept]) -> None:
    kept = keep(HIDES)
    assert kept.shim.wait(30) == 1
    assert "because it keeps on the disk what cannot be counted" in kept.log() and "Permission denied" in kept.log()
    scratch.remove(kept.folder)
    assert not kept.folder.exists()


def deep(folder: Path, levels: int) -> None:
    """Folders in one another, with a file in the last, by a path longer than any that the kernel takes."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 250, dir_fd=handle)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)


def test_a_path_that_is_too_long_for_the_kernel_is_counted(tmp_path: Path) -> None:
    deep(tmp_path, 40)
    assert scratch.size_on_disk(str(tmp_path))[0] == 41
    scratch.remove(tmp_path)
    assert not tmp_path.exists()


def test_folders_that_are_too_deep_are_refused_and_removed(tmp_path: Path) -> None:
    deep(tmp_path, 1100)  # more than a process usually has descriptors
    with pytest.raises(scratch.CannotLook, match="in one another"):
        scratch.size_on_disk(str(tmp_path))
    scratch.remove(tmp_path)
    assert not tmp_path.exists()


CLOSES = """
import os, sys
from pathlib import Path
from serving.targets.agent import scratch
top = Path(sys.argv[1]) / "top"
for mode in (0o300, 0o500, 0o000, 0o700):
    (top / f"{mode:o}" / "below" / "further").mkdir(parents=True)
    (top / f"{mode:o}" / "below" / "file").touch()
    for name in ("below/further", "below", ""):
        (top / f"{mode:o}" / name).chmod(mode)
(top / "link").symlink_to("/")
scratch.remove(top)
sys.exit(top.exists())
"""


def test_no_mode_keeps_a_folder_from_being_removed() -> None:
    who = {} if os.getuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    python = ordinary_python()
    if not python:
        pytest.skip("there is no Python that an ordinary user can start")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        done = subprocess.run([python, "-S", "-c", CLOSES, name], check=False, cwd="/", env=ENVIRONMENT, **who)
        assert done.returncode == 0


def test_what_lies_outside_stays_as_it_is(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    (outside / "file").touch()
    outside.chmod(0o500)  # after the file: an ordinary user writes none into it
    top.mkdir()
    (top / "link").symlink_to(outside)
    scratch.remove(top)
    assert not top.exists() and (outside / "file").exists() and outside.stat().st_mode & 0o777 == 0o500


def test_what_a_server_keeps_is_counted_and_links_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / "sub").mkdir(parents=True)
    (tmp_path / "home" / "sub" / "file").write_bytes(bytes(1 << 20))
    (tmp_path / "big").write_bytes(bytes(4 << 20))
    (tmp_path / "home" / "link").symlink_to(tmp_path / "big")
    files, size = scratch.size_on_disk(str(tmp_path / "home"), str(tmp_path / "missing"))
    assert files == 3 and 1 << 20 <= size < 2 << 20
    monkeypatch.setattr(scratch, "MOST_FILES", 2)
    assert scratch.size_on_disk(str(tmp_path / "home"))[0] == 3  # and no look at more than one too many


@pytest.mark.parametrize(("lack", "looks"), [(errno.ENFILE, server_shim._LOOKS_IN_VAIN), (errno.EIO, 1)])
def test_only_a_machine_without_room_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: int, looks: int
) -> None:
    spec = containment.spec_for(tmp_path, Path(sys.prefix), (LANDLOCK, SECCOMP), argv=("x",), env={}, bounds=BOUNDS)
    (tmp_path / server_shim.SANDBOX_FILE).write_text(json.dumps(spec.as_json()))
    tried = []

    def look(*folders: str) -> tuple[int, int]:
        tried.append(folders)
        raise OSError(lack, os.strerror(lack))

    monkeypatch.setattr(server_shim, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(scratch, "size_on_disk", look)
    with subprocess.Popen(["/bin/sleep", "600"]) as server:
        server_shim._watch_growth(tmp_path, server.pid)
        assert server.wait() == -signal.SIGKILL
    assert len(tried) == looks


WRITES = """
import os, sys
try:
    os.ftruncate(1, 400 << 20)
except OSError:
    pass
for _ in range(20 * 1024):
    os.write(1, (b"x" * 1023 + b"\\n") if LINES else b"x" * 1024)
os.write(2, b"\\nthe last words\\n")
"""


@pytest.mark.parametrize("has_lines", [True, False])
def test_a_server_cannot_make_its_log_large(keep: Callable[..., Kept], has_lines: bool) -> None:
    """20 MiB are written, after the code tried to make it a file of 400 MiB."""
    kept = keep(f"LINES = {has_lines}\n{WRITES}")
    assert kept.shim.wait(60) == 1
    log = kept.folder / server_shim.LOG_FILE
    assert 100_000 < log.stat().st_size <= server_log.MOST_BYTES
    assert end_of(log).endswith("the last words\n")
    assert "exit_code" in json.loads((kept.folder / server_shim.SHIM_FILE).read_text())


def test_a_log_on_a_full_disk_stops_no_server(tmp_path: Path) -> None:
    log = server_log.BoundedLog(Path("/dev/full"))
    pipe = os.dup(log.pipe)
    log.begin()
    assert os.write(pipe, b"x" * (1 << 16)) and os.write(pipe, b"y" * (1 << 16))
    os.close(pipe)
    log.finish()
    assert not log._copies.is_alive()


def test_a_record_that_is_too_long_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / server_shim.SHIM_FILE).write_text(json.dumps({"pid": 1}) + " " * (1 << 20))
    with pytest.raises(OSError, match="more than"):
        shim_record.record_of(tmp_path)
