"""The launcher and its shims on a real tritonserver: a server's life, and that nothing of it is ever left behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledger.adapters.linux_processes import is_running, started_at_ticks
from serving.ports import LaunchError, RunningServer
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent import containment, server_shim, shim_record
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.hardware import hardware
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.sandbox.spec import EDITION, LANDLOCK, SECCOMP
from serving.targets.core.containment import Containment, of_facts
from tests.contracts import serving_models as made
from tests.contracts.serving_models import VENV, MemoryBlobs
from tests.support.rigs.triton_rig import local_launcher, refusal, start

pytestmark = [pytest.mark.real("triton"), pytest.mark.shows("platform:local"), pytest.mark.root_too]


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def launcher(tmp_path: Path, blobs: MemoryBlobs) -> Iterator[LocalLauncher]:
    with local_launcher(tmp_path, blobs) as made_launcher:
        yield made_launcher


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Any]:
    file = (tmp_path / "stack.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    yield file
    file.close()


def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def processes_of(folder: Path) -> list[int]:
    """Every process that names the server's folder: shim, server, model processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes() and started_at_ticks(int(path.parent.name)):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def shared_memory_of(running: RunningServer) -> list[str]:
    """The machine's, and the server's own where it has one; each region is its owner's alone."""
    places = (Path("/dev/shm"), Path(f"/proc/{running.pid}/root/dev/shm"))
    found = {path for place in places for path in place.glob(f"sg{running.folder.name.rpartition('-')[2]}_*")}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in found)
    return [path.name for path in found]


def double(launcher: LocalLauncher, running: RunningServer, model: str = "doubling") -> list[float]:
    launcher.await_loaded(running, model, timeout_s=60)
    client = TritonServer(running.host, running.http_port, running.grpc_port)
    try:
        answered: list[float] = (
            client.infer(model, {"x": np.ones((1, 4), np.float32)}, timeout_s=30).outputs["y"][0].tolist()
        )
        return answered
    finally:
        client.close()


#: How the kernel writes 127.0.0.1 and "every address" in /proc/net/tcp and tcp6 on a little-endian machine.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
EVERYWHERE = {"00000000", "0" * 32}


def addresses_of(port: int) -> set[str]:
    """The addresses at which something on this machine listens on ``port``, as the kernel writes them (proc(5))."""
    lines = [line for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    sockets = [line.split()[1].split(":") for line in lines if line.split()[3] == "0A"]
    return {address for address, at in sockets if int(at, 16) == port}


@pytest.mark.allow_hosts(["127.0.0.1", "127.0.0.9"])  # both of this machine alone
def test_a_server_listens_where_its_node_says(tmp_path: Path, blobs: MemoryBlobs) -> None:
    cache = BlobCache(tmp_path / "cache", blobs)
    launcher = LocalLauncher(servers=tmp_path / "servers", venv=VENV, blobs=cache, address="127.0.0.9")
    running = start(launcher, made.doubling(blobs))
    try:
        assert running.host == "127.0.0.9" and double(launcher, running) == [2, 2, 2, 2]
        for port in (running.http_port, running.grpc_port, running.metrics_port):
            socket.create_connection(("127.0.0.9", port), timeout=5).close()
            # Not by a connection to 127.0.0.1: some other server of the machine may have this number there.
            assert not addresses_of(port) & EVERYWHERE
        found = launcher.adopt(running.folder)
        assert found is not None and found.host == "127.0.0.9"
    finally:
        launcher.stop(running, grace_s=10)


def test_a_server_serves_and_leaves_nothing(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    running = start(launcher, made.doubling(blobs))
    assert double(launcher, running) == [2, 2, 2, 2]
    client = TritonServer(running.host, running.http_port, running.grpc_port)
    assert client._client.get_server_metadata(client_timeout=30).version == launcher.runtimes()[0]["versions"]["triton"]
    assert launcher.is_alive(running) and shared_memory_of(running)
    assert running.folder.stat().st_mode & 0o007 == 0  # nobody else's, whoever the server runs as
    told = (server_shim.LAUNCH_FILE, server_shim.SANDBOX_FILE, server_shim.LOG_FILE)
    assert {stat.S_IMODE((running.folder / name).stat().st_mode) for name in told} == {0o600}
    client.close()
    launcher.stop(running, grace_s=10)
    assert not launcher.is_alive(running) and not running.folder.exists()
    assert processes_of(running.folder) == [] and shared_memory_of(running) == []
    launcher.stop(running, grace_s=1)  # again: nothing happens


def model_threads(running: RunningServer) -> list[int]:
    """How many threads each process of the server's model has."""
    stubs = [
        pid
        for pid in processes_of(running.folder)
        if b"python_backend_stub" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in stubs]


def test_instances_and_threads_are_those_of_the_release(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    plain, wide = (
        start(launcher, made.doubling(blobs, instance_group=[{"kind": "cpu", "count": count}], parameters=parameters))
        for count, parameters in ((1, {}), (2, {"intra_op_threads": "3"}))
    )
    assert double(launcher, plain) == double(launcher, wide) == [2, 2, 2, 2]
    (alone,) = model_threads(plain)
    assert model_threads(wide) == [alone + 2, alone + 2]  # a graph's own threads, beside the one that asks it


def test_a_server_listens_on_loopback_only_and_has_no_secrets(
    launcher: LocalLauncher, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEGATE_SECRET_KEY", "hush")
    running = start(launcher, made.doubling(blobs))
    assert b"hush" not in Path(f"/proc/{running.pid}/environ").read_bytes()
    record = json.loads((running.folder / server_shim.SHIM_FILE).read_text())
    assert b"hush" not in Path(f"/proc/{record['pid']}/environ").read_bytes()
    ports = {running.http_port, running.grpc_port, running.metrics_port}
    assert eventually(lambda: all(map(addresses_of, ports)))  # the metrics port opens a moment after the others
    for port in ports:
        assert addresses_of(port) & LOOPBACK and not addresses_of(port) & EVERYWHERE


def test_a_release_for_a_gpu_is_not_loaded_where_there_is_none(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    if hardware()["gpus"]:
        pytest.skip("this machine has a GPU")
    running = start(launcher, made.doubling(blobs, instance_group=[{"kind": "gpu", "count": 1}]))
    with pytest.raises(LaunchError, match="no GPUs are available") as caught:
        double(launcher, running)
    assert caught.value.reason == "load_failed"


def test_a_sandbox_that_cannot_be_had_says_what_was_refused(
    launcher: LocalLauncher, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = containment.spec_for
    monkeypatch.setattr(containment, "spec_for", lambda *args, **kw: replace(own(*args, **kw), home="/nowhere/home"))
    monkeypatch.setattr(containment, "make_folders", lambda spec, folder: (folder / "root").mkdir())
    launcher._layers = (LANDLOCK, SECCOMP)  # which makes no folder of its own
    error = refusal(launcher, made.doubling(blobs))
    assert error.reason == "not_ready" and "sandbox: [Errno 2]" in error.message


def test_nothing_is_started_while_it_cannot_be_told_how_it_would_be_shut_in(
    launcher: LocalLauncher, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher._finder = containment.Finder(VENV, launcher.servers)
    with monkeypatch.context() as changed:
        changed.setattr(containment, "_TRIALS", ((0.0, 0.001),))
        error = refusal(launcher, made.doubling(blobs))
    assert error.reason == "not_ready" and "no end within 0.001 s" in error.message
    told = launcher.containment()
    assert told["tier"] == "unknown" and of_facts({"containment": told}) is Containment.UNKNOWN
    launcher._finder._again_at = 0.0
    assert double(launcher, start(launcher, made.doubling(blobs)))


def test_a_server_that_fills_the_disk_is_ended_and_says_so(
    launcher: LocalLauncher, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher._layers = (LANDLOCK, SECCOMP)
    if refused := containment.try_layers(launcher._layers, VENV, launcher.servers):
        pytest.skip(f"this machine does not grant landlock: {refused}")
    own = containment.bounds_of
    monkeypatch.setattr(containment, "bounds_of", lambda *args: replace(own(*args), scratch=3 << 20))
    running = start(launcher, made.doubling(blobs))
    double(launcher, running)
    home = running.folder / "home"
    (home / "allowed").write_bytes(bytes(2 << 20))
    looked_at = lambda: home.stat().st_atime_ns > home.stat().st_mtime_ns  # noqa: E731
    eventually(looked_at, within_s=2 * server_shim._LOOK_EVERY_S)  # some file systems do not tell
    time.sleep(0.3)
    assert launcher.is_alive(running)
    (running.folder / "tmp" / "deep").mkdir()
    (running.folder / "tmp" / "deep" / "more").write_bytes(bytes(2 << 20))
    assert eventually(lambda: not launcher.is_alive(running))
    assert "because it keeps on the disk" in (running.folder / server_shim.LOG_FILE).read_text()


def test_a_killed_server_is_noticed_and_its_memory_cleared(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    running = start(launcher, made.doubling(blobs))
    double(launcher, running)
    assert launcher.exit_code(running) is None
    os.kill(running.pid, signal.SIGKILL)
    assert eventually(lambda: not launcher.is_alive(running))
    assert launcher.exit_code(running) == -signal.SIGKILL  # its shim is given the time to note it
    assert eventually(lambda: processes_of(running.folder) == [] and shared_memory_of(running) == [])
    assert json.loads((running.folder / server_shim.SHIM_FILE).read_text())["exit_code"] == -signal.SIGKILL
    launcher.stop(running, grace_s=5)
    assert not running.folder.exists() and launcher.exit_code(running) is None


def test_a_killed_shim_takes_its_server_along_and_a_sweep_clears_up(
    launcher: LocalLauncher, blobs: MemoryBlobs
) -> None:
    running = start(launcher, made.doubling(blobs))
    double(launcher, running)
    os.kill(json.loads((running.folder / server_shim.SHIM_FILE).read_text())["pid"], signal.SIGKILL)
    assert eventually(lambda: processes_of(running.folder) == [])
    assert launcher.exit_code(running) is None  # nobody was left to note it
    other = LocalLauncher(servers=launcher.servers, venv=VENV, blobs=BlobCache(launcher.servers / "../cache", blobs))
    assert other.adopt(running.folder) is None
    assert other.sweep(set()) == [running.folder]
    assert shared_memory_of(running) == [] and not running.folder.exists()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_leftover_that_cannot_be_read_stops_no_sweep(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise the agent would sweep for ever, and start no server. Without a free file descriptor it sweeps again."""
    folders = [launcher.servers / name for name in ("doubling-r1-1-aaaaaaaa", "doubling-r1-2-bbbbbbbb")]
    for folder in folders:
        folder.mkdir(parents=True)
    read = shim_record.record_of

    def record_of(folder: Path) -> dict[str, Any]:
        if folder == folders[0]:
            raise OSError(number, os.strerror(number))
        return read(folder)

    with monkeypatch.context() as short:
        short.setattr(shim_record, "record_of", record_of)
        if number == errno.EMFILE:
            with pytest.raises(OSError, match="Too many open files"):
                launcher.sweep(set())
        else:
            assert launcher.sweep(set()) == [folders[1]] and folders[0].exists()
    assert folders[0] in launcher.sweep(set())


def test_freeing_the_stacks_lock_ends_every_server_and_leaves_nothing(
    tmp_path: Path, blobs: MemoryBlobs, lock: Any
) -> None:
    launcher = LocalLauncher(
        servers=tmp_path / "servers",
        venv=VENV,
        blobs=BlobCache(tmp_path / "cache", blobs),
        lock=tmp_path / "stack.lock",
    )
    one, two = (start(launcher, manifest) for manifest in (made.doubling(blobs), made.misbehaving(blobs)))
    double(launcher, one)
    double(launcher, two, "misbehaving")
    assert launcher.is_alive(one) and launcher.is_alive(two)
    lock.close()  # as the kernel does when the supervisor dies, however it dies
    for running in (one, two):
        assert eventually(lambda: processes_of(running.folder) == [] and not running.folder.exists())  # noqa: B023
        assert shared_memory_of(running) == []
    assert not server_shim.is_locked(tmp_path / "stack.lock")  # the next stack can start
    for shim in launcher._shims.values():  # a shim removes its folder shortly before it ends
        shim.wait(60)
    assert launcher.sweep(set()) == [] and launcher._shims == {}


_STARTER = """
import json, sys
from pathlib import Path
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.launcher import LocalLauncher
from tests.contracts import serving_models as made
blobs = made.MemoryBlobs()
cache = BlobCache(Path(sys.argv[1]) / "../cache", blobs)
launcher = LocalLauncher(servers=Path(sys.argv[1]), venv=made.VENV, blobs=cache)
running = launcher.start(made.launch_spec(made.doubling(blobs), launcher.folder_for(1, "doubling", "r1")))
print(running.folder, flush=True)
sys.stdin.read()
"""


def test_a_server_survives_its_starter_and_is_adopted(launcher: LocalLauncher) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER, str(launcher.servers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert starter.stdout
    with starter:
        folder = Path(starter.stdout.readline().strip())
        starter.kill()
    running = launcher.adopt(folder)
    assert running and launcher.is_alive(running)
    assert double(launcher, running) == [2, 2, 2, 2]
    assert launcher.sweep({folder}) == []  # wanted: it stays
    launcher.stop(running, grace_s=10)
    assert processes_of(folder) == [] and not folder.exists()


LACKS: list[tuple[str, dict[str, Any]]] = [
    (server_shim.LAUNCH_FILE, {"secret": ""}),
    (server_shim.LAUNCH_FILE, {"sandbox": EDITION - 1}),
    (server_shim.SANDBOX_FILE, {"layers": [SECCOMP]}),
    (server_shim.SANDBOX_FILE, {"layers": []}),
]


def test_a_server_that_is_not_shut_in_as_today_is_not_adopted(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    if launcher.granted.tier is not Containment.CONTAINED:
        pytest.skip("this machine grants no layer that a server could lack")
    running = start(launcher, made.doubling(blobs))
    others = {
        layers: LocalLauncher(servers=launcher.servers, venv=VENV, blobs=launcher._blobs, layers=layers)
        for layers in (None, (SECCOMP,))
    }
    (running.folder / server_shim.LAUNCH_FILE).write_text(
        json.dumps({**json.loads((running.folder / server_shim.LAUNCH_FILE).read_text()), "sandbox": EDITION + 1})
    )  # started by a later Sluicegate, before somebody went back to this one
    for file, changes in LACKS:
        assert all(other.adopt(running.folder) == running for other in others.values())  # more than today's is no lack
        told = (running.folder / file).read_text()
        (running.folder / file).write_text(json.dumps({**json.loads(told), **changes}))
        assert others[None].adopt(running.folder) is None, changes
        if changes is not LACKS[-1][1]:
            (running.folder / file).write_text(told)
    others[None].stop(running, grace_s=5)
    assert eventually(lambda: processes_of(running.folder) == []) and not running.folder.exists()


def test_a_pid_given_to_another_process_is_not_taken_for_ours() -> None:
    own = started_at_ticks(os.getpid())
    assert own is not None
    assert is_running(os.getpid(), own)
    assert not is_running(os.getpid(), own + 1)


def test_a_short_prefix_never_clears_shared_memory() -> None:
    with pytest.raises(ValueError, match="too short"):
        server_shim.clear_shared_memory("sg")
