"""What every launcher must do: the one that starts servers here, and the one that gives releases to somebody else's Triton."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.ports import LaunchError, RunningServer
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.node_launcher import NodeLauncher
from serving.targets.agent.static_launcher import StaticLauncher
from serving.targets.core.static_servers import REQUEST
from tests.contracts import serving_models as made
from tests.contracts.serving_models import VENV, MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import wait_until
from tests.support.rigs.static_rig import owner
from tests.support.rigs.triton_rig import local_launcher

pytestmark = pytest.mark.real("triton")
STATIC = pytest.mark.shows("platform:static")


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture(
    params=[
        pytest.param("local", marks=pytest.mark.shows("platform:local")),
        pytest.param("static, by request", marks=STATIC),
        pytest.param("static, by folder", marks=STATIC),
    ]
)
def another(request: pytest.FixtureRequest, tmp_path: Path, blobs: MemoryBlobs) -> Iterator[Callable[[], NodeLauncher]]:
    """Makes a launcher; each is as one of an agent that was started anew."""
    cache = BlobCache(tmp_path / "cache", blobs)
    with contextlib.ExitStack() as held:
        if request.param == "local":
            first = held.enter_context(local_launcher(tmp_path, blobs))

            def make() -> NodeLauncher:
                one = LocalLauncher(servers=first.servers, venv=VENV, blobs=cache)
                one._finder = first._finder
                return one
        else:
            theirs = held.enter_context(owner(tmp_path / "owner"))

            def make() -> NodeLauncher:
                loads = REQUEST if request.param == "static, by request" else str(theirs.repository)
                runtime = made.doubling(blobs)["runtime"]["image"]
                return StaticLauncher(
                    theirs.at,
                    servers=tmp_path / "servers",
                    blobs=cache,
                    loads=loads,
                    runtime=runtime,
                    allows_uncontained_code=True,
                )

        yield make


def begun(launcher: NodeLauncher, manifest: dict[str, Any]) -> RunningServer:
    return launcher.start(launch_spec(manifest, launcher.folder_for(1, manifest["model"], "r1")))


def doubled(server: RunningServer, model: str = "doubling") -> list[float]:
    client = TritonServer(server.host, server.http_port, server.grpc_port)
    try:
        answer: list[float] = (
            client.infer(model, {"x": np.ones((1, 4), np.float32)}, timeout_s=30).outputs["y"][0].tolist()
        )
        return answer
    finally:
        client.close()


def test_a_release_is_served_found_again_and_taken_away(
    another: Callable[[], NodeLauncher], blobs: MemoryBlobs
) -> None:
    launcher = another()
    offered, *_ = launcher.runtimes()
    assert offered["image"] == made.doubling(blobs)["runtime"]["image"] and launcher.missing() == ""
    running = begun(launcher, made.doubling(blobs))
    launcher.await_loaded(running, "doubling", timeout_s=60)
    assert launcher.is_alive(running) and doubled(running) == [2, 2, 2, 2]
    assert launcher.exit_code(running) is None
    later = another()
    assert later.adopt(running.folder) == running and later.is_alive(running)
    assert later.sweep({running.folder}) == [] and doubled(running) == [2, 2, 2, 2]  # wanted: it stays
    later.stop(running, grace_s=10)
    assert not launcher.is_alive(running) and not running.folder.exists()
    assert later.adopt(running.folder) is None
    launcher.stop(running, grace_s=1)  # again: nothing happens


def test_a_sweep_takes_away_what_nobody_wants(another: Callable[[], NodeLauncher], blobs: MemoryBlobs) -> None:
    launcher = another()
    running = begun(launcher, made.doubling(blobs))
    launcher.await_loaded(running, "doubling", timeout_s=60)
    later = another()
    assert later.sweep(set()) == [running.folder]
    assert later.adopt(running.folder) is None and not running.folder.exists()
    assert launcher.sweep(set()) == []


def test_text_goes_through_the_releases_tokenizer(another: Callable[[], NodeLauncher], blobs: MemoryBlobs) -> None:
    launcher = another()
    running = begun(launcher, made.words(blobs))
    launcher.await_loaded(running, "words", timeout_s=60)
    client = TritonServer(running.host, running.http_port, running.grpc_port)
    texts = np.array([["Good BAD film"]], dtype=object)
    assert client.infer("words", {"text": texts}, timeout_s=30).outputs["total"].tolist() == [[9]]
    client.close()
    launcher.stop(running, grace_s=10)


def test_who_waits_for_a_load_may_stop_waiting(another: Callable[[], NodeLauncher], blobs: MemoryBlobs) -> None:
    class Enough(Exception):
        pass

    def beat() -> None:
        raise Enough

    launcher = another()
    running = begun(launcher, made.doubling(blobs))
    with pytest.raises(Enough):
        launcher.await_loaded(running, "doubling", timeout_s=60, beat=beat)
    wait_until(lambda: launcher.is_alive(running), "what was begun goes on")
    launcher.stop(running, grace_s=10)
    assert not launcher.is_alive(running)


def test_a_model_that_cannot_start_says_why(another: Callable[[], NodeLauncher], blobs: MemoryBlobs) -> None:
    launcher = another()
    running = begun(launcher, made.misbehaving(blobs, parameters={"fail": "load"}))
    with pytest.raises(LaunchError) as caught:
        launcher.await_loaded(running, "misbehaving", timeout_s=60)
    assert caught.value.reason == "load_failed"
    assert "the weights are not what they should be" in caught.value.message
    assert str(running.folder) not in caught.value.message
    launcher.stop(running, grace_s=10)
    assert not running.folder.exists()


def test_a_graph_that_lacks_a_declared_output_says_which(
    another: Callable[[], NodeLauncher], blobs: MemoryBlobs
) -> None:
    launcher = another()
    running = begun(launcher, made.doubling(blobs, outputs=[{"name": "wanted", "data_type": "FP32", "dims": [4]}]))
    with pytest.raises(LaunchError, match="'wanted'"):
        launcher.await_loaded(running, "doubling", timeout_s=60)
    launcher.stop(running, grace_s=10)


@pytest.mark.parametrize("bad", ["runtime", "bytes", "path"])
def test_what_is_not_as_it_was_sealed_reaches_no_server(
    another: Callable[[], NodeLauncher], blobs: MemoryBlobs, bad: str
) -> None:
    manifest, launcher = made.doubling(blobs), another()
    if bad == "runtime":
        manifest["runtime"]["image"] = f"other/triton@sha256:{'0' * 64}"
    elif bad == "path":
        manifest["files"][0]["path"] = "artifact/../../model.onnx"
    else:
        sha256 = manifest["files"][0]["sha256"].removeprefix("sha256:")
        blobs.data[sha256] = blobs.data[sha256][:-1] + b"!"
    with pytest.raises(LaunchError) as caught:
        begun(launcher, manifest)
    wanted = {"runtime": "runtime_mismatch", "bytes": "digest_mismatch", "path": "bad_config"}
    assert caught.value.reason == wanted[bad]
    assert [one for one in launcher.servers.glob("*") if one.is_dir() and not one.name.startswith("trial")] == []  # type: ignore[attr-defined]
