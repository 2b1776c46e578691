"""The launcher and its shims on a real tritonserver: what is refused before it starts, and that nothing is ever left behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
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
from serving.adapters.triton import TritonServer
from serving.agent import containment, model_repository, runtime_image, server_shim
from serving.agent.blob_cache import BlobCache
from serving.agent.launcher import LocalLauncher
from serving.agent.sandbox.spec import EDITION, LANDLOCK, SECCOMP
from serving.core.containment import of_facts
from serving.ports import LaunchError, RunningServer
from tests.contracts import serving_models as made
from tests.contracts.serving_models import VENV, MemoryBlobs, launch_spec

pytestmark = pytest.mark.real("triton")


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def launcher(tmp_path: Path, blobs: MemoryBlobs) -> Iterator[LocalLauncher]:
    made_launcher = LocalLauncher(servers=tmp_path / "servers", venv=VENV, blobs=BlobCache(tmp_path / "cache", blobs))
    yield made_launcher
    made_launcher.sweep(set())


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Any]:
    file = (tmp_path / "stack.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    yield file
    file.close()


def start(launcher: LocalLauncher, manifest: dict[str, Any]) -> RunningServer:
    return launcher.start(launch_spec(manifest, launcher.folder_for(1, manifest["model"], "r1")))


def refusal(launcher: LocalLauncher, manifest: dict[str, Any]) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        start(launcher, manifest)
    assert list(launcher.servers.glob("*")) == []  # nothing half-made stays
    return caught.value


def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
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
    launcher.await_loaded(running, model, timeout_s=30)
    client = TritonServer(running.host, running.http_port, running.grpc_port)
    try:
        answered: list[float] = (
            client.infer(model, {"x": np.ones((1, 4), np.float32)}, timeout_s=5).outputs["y"][0].tolist()
        )
        return answered
    finally:
        client.close()


# what runs is what was sealed


def test_a_wrong_byte_is_refused_before_the_server_sees_it(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    manifest = made.doubling(blobs)
    sha256 = manifest["files"][0]["sha256"]
    blobs.data[sha256] = blobs.data[sha256][:-1] + b"!"
    error = refusal(launcher, manifest)
    assert error.reason == "digest_mismatch"
    assert "artifact/model.onnx" in error.message and sha256 in error.message


def test_a_manifest_that_is_not_the_sealed_one_is_refused(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    manifest = made.doubling(blobs)
    spec = launch_spec(manifest, launcher.folder_for(1, "doubling", "r1"))
    manifest["serving"]["max_batch_size"] = 4
    with pytest.raises(LaunchError) as caught:
        launcher.start(spec)
    assert caught.value.reason == "digest_mismatch"


def test_a_blob_that_is_gone_is_named(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    manifest = made.doubling(blobs)
    blobs.data.clear()
    error = refusal(launcher, manifest)
    assert error.reason == "fetch_failed" and "artifact/model.onnx" in error.message


def test_another_runtime_is_refused(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    other = f"local/triton-onnx@sha256:{'0' * 64}"
    manifest = made.manifest(
        blobs, "doubling", {"artifact/model.onnx": made.doubling_graph()}, made.serving(), image=other
    )
    error = refusal(launcher, manifest)
    assert error.reason == "runtime_mismatch"
    assert other in error.message and launcher.runtimes()[0]["image"] in error.message


def test_a_node_without_a_serving_environment_says_how_to_get_one(tmp_path: Path, blobs: MemoryBlobs) -> None:
    launcher = LocalLauncher(
        servers=tmp_path / "servers", venv=tmp_path / "nothing", blobs=BlobCache(tmp_path / "cache", blobs)
    )
    assert launcher.runtimes() == []
    error = refusal(launcher, made.doubling(blobs))
    assert error.reason == "runtime_mismatch" and "make setup" in error.message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_us": 0}},
            "preferred batch sizes [8]",
        ),
        ({"inputs": [{"name": "x", "data_type": "FLOAT99", "dims": [4]}]}, "FLOAT99"),
        ({"max_batch_size": "many"}, "many"),
    ],
    ids=["preferred", "data type", "not a number"],
)
def test_a_wrong_configuration_is_refused_with_its_reason(
    launcher: LocalLauncher, blobs: MemoryBlobs, changes: dict[str, Any], says: str
) -> None:
    error = refusal(launcher, made.doubling(blobs, **changes))
    assert error.reason == "bad_config"
    assert says in error.message


@pytest.mark.parametrize("path", ["artifact/../../x", "/etc/x", "artifact/model.py", "artifact/sluicegate.json"])
def test_a_file_that_would_lie_elsewhere_or_on_a_file_of_ours_is_refused(
    launcher: LocalLauncher, blobs: MemoryBlobs, path: str
) -> None:
    manifest = made.doubling(blobs)
    manifest["files"].append({"path": path, "role": "artifact", "sha256": blobs.put(b"x"), "size_bytes": 1})
    assert refusal(launcher, manifest).reason == "bad_config"


def test_a_release_without_its_entry_file_is_refused(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    manifest = made.manifest(blobs, "doubling", {"artifact/weights.bin": b"x"}, made.serving())
    assert "artifact/model.onnx" in refusal(launcher, manifest).message


def test_files_are_checked_while_they_are_written(tmp_path: Path, blobs: MemoryBlobs) -> None:
    """A store that changes the bytes after it was asked once is caught all the same."""

    class Lying(MemoryBlobs):
        def reader_of(self, sha256: str) -> Any:
            return lambda start, length: b"other bytes"[start : start + length]

    spec = launch_spec(made.doubling(blobs), tmp_path / "server")
    with pytest.raises(LaunchError) as caught:
        model_repository.write(spec, BlobCache(tmp_path / "cache", Lying()), tmp_path / "repository")
    assert caught.value.reason == "digest_mismatch"
    assert not (tmp_path / "repository" / "doubling" / "1" / "model.onnx").exists()


# the runtime's digest


def test_the_runtime_is_the_same_each_time_and_knows_its_versions() -> None:
    first, second = runtime_image.describe(VENV), runtime_image.describe(VENV)
    assert first == second
    assert first["image"].startswith("local/triton-onnx@sha256:") and first["versions"]["numpy"].startswith("1.")


def test_a_change_of_the_runner_is_another_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = runtime_image.describe(VENV)["image"]
    (tmp_path / "onnx_runner.py").write_text("# changed")
    monkeypatch.setattr(runtime_image, "RUNNER", tmp_path)
    assert runtime_image.describe(VENV)["image"] != before


# a life of a server


def test_a_server_serves_and_leaves_nothing(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    running = start(launcher, made.doubling(blobs))
    assert double(launcher, running) == [2, 2, 2, 2]
    client = TritonServer(running.host, running.http_port, running.grpc_port)
    assert client._client.get_server_metadata(client_timeout=5).version == launcher.runtimes()[0]["versions"]["triton"]
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
    ports = {f"{port:04X}" for port in (running.http_port, running.grpc_port, running.metrics_port)}

    def listening() -> dict[str, str]:
        """Port → address, as the kernel writes them (proc(5), /proc/net/tcp)."""
        lines = [line for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        sockets = [line.split()[1].split(":") for line in lines if line.split()[3] == "0A"]
        return {port: address for address, port in sockets if port in ports}

    assert eventually(lambda: len(listening()) == 3)  # the metrics port opens a moment after the others
    assert set(listening().values()) <= {"0100007F", "0000000000000000FFFF00000100007F"}  # the latter is 127.0.0.1 too


def test_a_model_that_cannot_start_says_why(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    running = start(launcher, made.misbehaving(blobs, parameters={"fail": "load"}))
    with pytest.raises(LaunchError) as caught:
        double(launcher, running, "misbehaving")
    assert caught.value.reason == "load_failed"
    assert "the weights are not what they should be" in caught.value.message
    assert str(running.folder) not in caught.value.message


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
    with monkeypatch.context() as changed:
        changed.setattr(containment, "_TRIALS", ((0.0, 0.001),))
        error = refusal(launcher, made.doubling(blobs))
    assert error.reason == "not_ready" and "no end within 0.001 s" in error.message
    told = launcher.containment()
    assert told["tier"] == "unknown" and of_facts({"containment": told}) is None
    launcher._finder._again_at = 0.0
    assert double(launcher, start(launcher, made.doubling(blobs)))


def test_a_graph_that_lacks_a_declared_output_says_which(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    running = start(launcher, made.doubling(blobs, outputs=[{"name": "wanted", "data_type": "FP32", "dims": [4]}]))
    with pytest.raises(LaunchError, match="'wanted'"):
        double(launcher, running)


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
    (running.folder / "home" / "allowed").write_bytes(bytes(2 << 20))
    time.sleep(server_shim._LOOK_EVERY_S + 1)
    assert launcher.is_alive(running)
    (running.folder / "tmp" / "deep").mkdir()
    (running.folder / "tmp" / "deep" / "more").write_bytes(bytes(2 << 20))
    assert eventually(lambda: not launcher.is_alive(running), within_s=15)
    assert "because it keeps on the disk" in (running.folder / server_shim.LOG_FILE).read_text()


def test_a_killed_server_is_noticed_and_its_memory_cleared(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    running = start(launcher, made.doubling(blobs))
    double(launcher, running)
    os.kill(running.pid, signal.SIGKILL)
    assert eventually(lambda: not launcher.is_alive(running))
    assert eventually(lambda: processes_of(running.folder) == [] and shared_memory_of(running) == [])
    assert json.loads((running.folder / server_shim.SHIM_FILE).read_text())["exit_code"] == -signal.SIGKILL
    launcher.stop(running, grace_s=5)
    assert not running.folder.exists()


def test_a_killed_shim_takes_its_server_along_and_a_sweep_clears_up(
    launcher: LocalLauncher, blobs: MemoryBlobs
) -> None:
    running = start(launcher, made.doubling(blobs))
    double(launcher, running)
    os.kill(json.loads((running.folder / server_shim.SHIM_FILE).read_text())["pid"], signal.SIGKILL)
    assert eventually(lambda: processes_of(running.folder) == [])
    other = LocalLauncher(servers=launcher.servers, venv=VENV, blobs=BlobCache(launcher.servers / "../cache", blobs))
    assert other.adopt(running.folder) is None
    assert other.sweep(set()) == [running.folder]
    assert shared_memory_of(running) == [] and not running.folder.exists()


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
    assert launcher.sweep(set()) == []


_STARTER = """
import json, sys
from pathlib import Path
from serving.agent.blob_cache import BlobCache
from serving.agent.launcher import LocalLauncher
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


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (server_shim.LAUNCH_FILE, {"secret": ""}),
        (server_shim.LAUNCH_FILE, {"sandbox": EDITION - 1}),
        (server_shim.SANDBOX_FILE, {"layers": [SECCOMP]}),
        (server_shim.SANDBOX_FILE, {"layers": []}),
    ],
)
def test_a_server_that_is_not_shut_in_as_today_is_not_adopted(
    launcher: LocalLauncher, blobs: MemoryBlobs, file: str, changes: dict[str, Any]
) -> None:
    if not launcher.granted.tier.holds_code:
        pytest.skip("this machine grants no layer that a server could lack")
    running = start(launcher, made.doubling(blobs))
    others = {
        layers: LocalLauncher(servers=launcher.servers, venv=VENV, blobs=launcher._blobs, layers=layers)
        for layers in (None, (SECCOMP,))
    }
    assert all(other.adopt(running.folder) == running for other in others.values())  # more than today's is no lack
    told = json.loads((running.folder / file).read_text())
    (running.folder / file).write_text(json.dumps({**told, **changes}))
    assert others[None].adopt(running.folder) is None
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
