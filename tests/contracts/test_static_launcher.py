"""Somebody else's servers, a Triton, an MLServer and a KServe: what is asked of them, what is refused, and what is left alone."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc

from serving.ports import LaunchError, RunningServer
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent import health_check, model_repository, static_launcher
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.node_agent import facts
from serving.targets.agent.static_launcher import StaticLauncher
from serving.targets.core.static_servers import NOTHING, REQUEST, StaticServer
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import wait_until
from tests.support.rigs.kserve_rig import kserve
from tests.support.rigs.mlserver_rig import mlserver
from tests.support.rigs.other_user import everything_in
from tests.support.rigs.static_rig import HOST, Owner, owner
from tests.support.servers.other_server import OtherServer

pytestmark = [pytest.mark.real("triton"), pytest.mark.shows("platform:static", "server:triton")]


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Owner]:
    with owner(tmp_path / "owner") as one:
        yield one


def launcher_for(at: StaticServer, blobs: MemoryBlobs, folder: Path, loads: str, **over: Any) -> StaticLauncher:
    return StaticLauncher(
        at,
        servers=folder / "servers",
        blobs=BlobCache(folder / "cache", blobs),
        loads=loads,
        runtime=made.doubling(blobs)["runtime"]["image"],
        **over,
    )


def begun(launcher: StaticLauncher, manifest: dict[str, Any], name: str = "r1") -> RunningServer:
    return launcher.start(launch_spec(manifest, launcher.folder_for(1, manifest["model"], name)))


def loaded(launcher: StaticLauncher, manifest: dict[str, Any]) -> RunningServer:
    running = begun(launcher, manifest)
    launcher.await_loaded(running, manifest["model"], timeout_s=60)
    return running


def refusal(launcher: StaticLauncher, manifest: dict[str, Any]) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        loaded(launcher, manifest)
    return caught.value


#: As its owner writes it: there is no stamp of ours in it.
OWNERS_CONFIG = """{
  "name": "doubling", "backend": "python", "max_batch_size": 8,
  "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
  "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
  "instance_group": [{"kind": "KIND_CPU", "count": 1}]
}"""


def load_by_hand(theirs: Owner, blobs: MemoryBlobs, folder: Path) -> None:
    """The owner loads a model named doubling, in the place of whatever has that name."""
    manifest = made.doubling(blobs)
    model_repository.write(launch_spec(manifest, folder), BlobCache(folder / "cache", blobs), folder)
    version = folder / "doubling" / "1"
    files = {f"file:1/{path.name}": path.read_bytes() for path in version.iterdir()}
    client = triton_grpc.InferenceServerClient(f"{HOST}:{theirs.at.grpc_port}")
    client.load_model("doubling", config=OWNERS_CONFIG, files=files)
    client.close()


def answers(at: StaticServer) -> bool:
    client = TritonServer(at.host, at.http_port, at.grpc_port)
    try:
        return bool(
            (client.infer("doubling", {"x": np.ones((1, 4), np.float32)}, timeout_s=30).outputs["y"] == 2).all()
        )
    finally:
        client.close()


@pytest.mark.parametrize("cannot", ["read its record", "open a connection"])
def test_an_agent_without_a_free_file_descriptor_does_not_call_the_server_gone(
    blobs: MemoryBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cannot: str
) -> None:
    launcher = launcher_for(StaticServer(HOST, 1, 2), blobs, tmp_path, NOTHING)
    folder = launcher.folder_for(1, "doubling", "r1")
    folder.mkdir(parents=True)
    (folder / static_launcher._RECORD).write_text('{"model": "doubling", "digest": "sha256:1"}')
    running = RunningServer(HOST, 1, 2, 0, 0, folder)
    assert not launcher.is_alive(running)  # nothing listens there

    def no_file(*_: object, **__: object) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    if cannot == "read its record":
        monkeypatch.setattr(Path, "open", no_file)
    else:
        monkeypatch.setattr(health_check.socket, "socket", no_file)
    with pytest.raises(OSError, match="Too many open files"):
        launcher.is_alive(running)


@pytest.mark.parametrize("by_folder", [False, True])
def test_a_model_of_the_owners_is_neither_replaced_nor_unloaded(
    theirs: Owner, blobs: MemoryBlobs, tmp_path: Path, by_folder: bool
) -> None:
    load_by_hand(theirs, blobs, tmp_path / "by-hand")
    loads = str(theirs.repository) if by_folder else REQUEST
    launcher = launcher_for(theirs.at, blobs, tmp_path, loads)
    error = refusal(launcher, made.doubling(blobs))
    assert error.reason == "load_failed" and "was not loaded from here" in error.message
    assert launcher.sweep(set()) == [] and answers(theirs.at)


def test_a_folder_of_the_owners_is_not_written_over(theirs: Owner, blobs: MemoryBlobs, tmp_path: Path) -> None:
    own = theirs.repository / "doubling" / "config.pbtxt"
    own.parent.mkdir()
    own.write_text("theirs")
    error = refusal(launcher_for(theirs.at, blobs, tmp_path, str(theirs.repository)), made.doubling(blobs))
    assert error.reason == "bad_config" and "was not written from here" in error.message
    assert own.read_text() == "theirs"


def test_what_is_written_into_the_servers_folder_may_be_read_by_its_owner(
    theirs: Owner, blobs: MemoryBlobs, tmp_path: Path
) -> None:
    launcher, umask = (
        launcher_for(theirs.at, blobs, tmp_path, str(theirs.repository)),
        os.umask(0o077),
    )  # as agents have
    try:
        begun(launcher, made.doubling(blobs))
    finally:
        os.umask(umask)
    written = everything_in(theirs.repository / "doubling")
    assert len(written) > 5
    for path in written:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == 0o755 if path.is_dir() else mode in {0o644, 0o444}, (path, oct(mode))
    assert stat.S_IMODE((tmp_path / "servers").stat().st_mode) == 0o700


def test_what_its_owner_puts_in_its_place_is_noticed_and_left_alone(
    theirs: Owner, blobs: MemoryBlobs, tmp_path: Path
) -> None:
    launcher = launcher_for(theirs.at, blobs, tmp_path, REQUEST)
    running = loaded(launcher, made.doubling(blobs))
    load_by_hand(theirs, blobs, tmp_path / "by-hand")
    wait_until(lambda: not launcher.is_alive(running), "the other model is seen")
    assert launcher.adopt(running.folder) is None
    launcher.stop(running, grace_s=5)
    assert answers(theirs.at) and not running.folder.exists()


def test_a_release_is_not_measured_beside_itself_on_one_server(
    theirs: Owner, blobs: MemoryBlobs, tmp_path: Path
) -> None:
    launcher = launcher_for(theirs.at, blobs, tmp_path, REQUEST)
    spec = launch_spec(made.doubling(blobs), launcher.folder_for(1, "doubling", "r1"))
    with pytest.raises(LaunchError, match="not measured beside itself") as caught:
        launcher.start(replace(spec, serving=made.serving(max_batch_size=1)))
    assert caught.value.reason == "bad_config" and not spec.folder.exists()


def test_a_server_that_went_and_came_back_has_lost_what_it_was_given(
    theirs: Owner, blobs: MemoryBlobs, tmp_path: Path
) -> None:
    launcher = launcher_for(theirs.at, blobs, tmp_path, REQUEST)
    running = loaded(launcher, made.doubling(blobs))
    theirs.kill()
    wait_until(lambda: not launcher.is_alive(running), "its end is seen")
    assert launcher.runtimes() == []
    assert "does not answer as it should" in launcher.missing() and str(theirs.at) in launcher.missing()
    launcher.stop(running, grace_s=1)  # cannot be told; it is not forgotten
    assert running.folder.exists()
    error = refusal(launcher, made.doubling(blobs))
    assert error.reason == "not_ready"  # what may pass
    theirs.start()
    wait_until(launcher.runtimes, "its connection is tried anew")
    wait_until(lambda: not launcher.is_alive(running), "it has it no more")
    again = loaded(launcher, made.doubling(blobs))
    assert answers(theirs.at) and launcher.is_alive(again) and not launcher.is_alive(running)
    assert not running.folder.exists()


@pytest.mark.parametrize("by_folder", [False, True])
def test_what_could_not_be_unloaded_is_once_the_server_answers_again(
    theirs: Owner, blobs: MemoryBlobs, tmp_path: Path, by_folder: bool
) -> None:
    launcher = launcher_for(theirs.at, blobs, tmp_path, str(theirs.repository) if by_folder else REQUEST)
    running = loaded(launcher, made.doubling(blobs))
    with theirs.away():
        launcher.stop(running, grace_s=1)
        launcher.stop_left()  # still away
        assert running.folder.exists()

    def is_unloaded() -> bool:
        launcher.stop_left()
        return not running.folder.exists()

    wait_until(is_unloaded, "it is unloaded")
    client = theirs.client()
    assert not client._client.is_model_ready("doubling", client_timeout=10)
    client.close()
    assert not (theirs.repository / "doubling").exists()
    again = loaded(launcher, made.doubling(blobs))
    launcher.stop_left()  # nothing is left, and what came since stays
    assert launcher.is_alive(again) and answers(theirs.at)


def test_what_is_given_to_the_server_anew_is_not_unloaded_for_what_was_left(
    theirs: Owner, blobs: MemoryBlobs, tmp_path: Path
) -> None:
    launcher = launcher_for(theirs.at, blobs, tmp_path, REQUEST)
    running = loaded(launcher, made.doubling(blobs))
    with theirs.away():
        launcher.stop(running, grace_s=1)
    wait_until(launcher.runtimes, "it answers again")
    again = loaded(launcher, made.doubling(blobs))
    launcher.stop_left()
    assert launcher.is_alive(again) and answers(theirs.at) and not running.folder.exists()


def test_a_release_that_comes_as_the_one_before_is_taken_away_keeps_its_files(
    theirs: Owner, blobs: MemoryBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = launcher_for(theirs.at, blobs, tmp_path, str(theirs.repository))
    before, manifest = loaded(launcher, made.doubling(blobs)), made.doubling(blobs)
    coming: list[Future[RunningServer]] = []
    has = launcher._has

    def while_the_next_comes(folder: Path, model: str, **how: Any) -> bool:
        found = has(folder, model, **how)
        if not coming:
            coming.append(pool.submit(begun, launcher, manifest, "r2"))
            if not launcher._changing[model].locked():  # else it waits until this is over
                coming[0].result()
        return found

    monkeypatch.setattr(launcher, "_has", while_the_next_comes)
    with ThreadPoolExecutor(1) as pool:
        launcher.stop(before, grace_s=5)
    launcher.await_loaded(coming[0].result(), "doubling", timeout_s=60)
    assert answers(theirs.at) and not before.folder.exists()


def test_a_server_that_takes_no_orders_says_so(tmp_path: Path, blobs: MemoryBlobs) -> None:
    with owner(tmp_path / "owner", control="none") as theirs:
        error = refusal(launcher_for(theirs.at, blobs, tmp_path, REQUEST), made.doubling(blobs))
    assert error.reason == "load_failed" and "explicit model load / unload is not allowed" in error.message


def test_code_is_loaded_only_where_the_owner_lets_it(theirs: Owner, blobs: MemoryBlobs, tmp_path: Path) -> None:
    error = refusal(launcher_for(theirs.at, blobs, tmp_path, REQUEST), made.misbehaving(blobs))
    assert error.reason == "not_contained"
    allowing = launcher_for(theirs.at, blobs, tmp_path, REQUEST, allows_uncontained_code=True)
    allowing.stop(loaded(allowing, made.misbehaving(blobs)), grace_s=5)


def test_nothing_of_this_machine_is_told_of_theirs(theirs: Owner, blobs: MemoryBlobs, tmp_path: Path) -> None:
    told = facts(launcher_for(theirs.at, blobs, tmp_path, REQUEST))
    assert set(told) == {"containment", "static"} and told["containment"]["tier"] == "unknown"
    assert told["static"] == {"address": str(theirs.at), "loads": REQUEST}
    theirs.kill()
    launcher = launcher_for(theirs.at, blobs, tmp_path, REQUEST)
    assert launcher.runtimes() == [] and "missing" in facts(launcher)


@pytest.fixture(
    params=[
        pytest.param(mlserver, marks=[pytest.mark.real("mlserver"), pytest.mark.shows("server:mlserver")]),
        pytest.param(kserve, marks=[pytest.mark.real("kserve"), pytest.mark.shows("server:kserve")]),
    ],
    ids=["mlserver", "kserve"],
)
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OtherServer]:
    """One of the Open Inference Protocol that is no Triton, and serves `doubling`."""
    with request.param(tmp_path / "other", "doubling", made.serving()) as one:
        yield one


def test_where_nothing_may_be_loaded_what_is_served_is_compared_and_left(
    other: OtherServer, blobs: MemoryBlobs, tmp_path: Path
) -> None:
    launcher = launcher_for(other.at, blobs, tmp_path, NOTHING)
    (offered,) = launcher.runtimes()
    assert offered["server"] == Path(other.argv[0]).parts[-3]
    running = loaded(launcher, made.doubling(blobs))
    assert running.pid == 0 and launcher.is_alive(running) and launcher.adopt(running.folder) == running
    wider = made.doubling(blobs, outputs=[{"name": "y", "data_type": "FP64", "dims": [4]}])
    error = refusal(launcher, wider)
    assert error.reason == "load_failed" and "output y is FP32[4], and FP64[4] is declared" in error.message
    assert refusal(launcher, made.words(blobs)).reason == "load_failed"  # it knows no such model
    spec = launch_spec(made.doubling(blobs), launcher.folder_for(1, "doubling", "r1"))
    with pytest.raises(LaunchError, match="r7 of doubling, in use, was sealed for the same runtime as r1"):
        launcher.start(replace(spec, alike=("r7",)))
    launcher.stop(running, grace_s=5)
    assert not running.folder.exists() and answers(launcher.server)
    other.kill()
    wait_until(lambda: not launcher.is_alive(running), "its end is seen")
    assert refusal(launcher, made.doubling(blobs)).reason == "not_ready"


def test_a_server_that_tells_no_configuration_is_given_nothing(
    other: OtherServer, blobs: MemoryBlobs, tmp_path: Path
) -> None:
    for loads in (REQUEST, str(tmp_path)):
        launcher = launcher_for(other.at, blobs, tmp_path, loads)
        assert launcher.runtimes() == []
        error = refusal(launcher, made.doubling(blobs))
        assert error.reason == "load_failed" and error.message == launcher.missing()
        assert "tells no model's configuration" in error.message and "loads=nothing" in error.message
        assert launcher.sweep(set()) == [] and not list(tmp_path.glob("servers/*"))
    assert answers(launcher.server)  # its owner's model is as it was
