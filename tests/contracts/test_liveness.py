"""The liveness call of each real server while its model computes: what `registry.core.kinds` states."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from registry.core.kinds import tells_live
from serving.ports import InferenceServer
from serving.servers.adapters.triton import TritonServer
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs
from tests.support.rigs.kserve_rig import kserve
from tests.support.rigs.mlserver_rig import mlserver
from tests.support.rigs.triton_rig import local_launcher, start

OTHERS = {"mlserver": mlserver, "kserve": kserve}
MODEL = "misbehaving"


@contextmanager
def server_of(kind: str, folder: Path) -> Iterator[InferenceServer]:
    blobs = MemoryBlobs()
    manifest = made.misbehaving(blobs)
    with ExitStack() as held:
        if kind in OTHERS:
            yield held.enter_context(OTHERS[kind](folder, MODEL, manifest["serving"])).client
            return
        launcher = held.enter_context(local_launcher(folder, blobs))
        running = start(launcher, manifest)
        launcher.await_loaded(running, manifest["model"], timeout_s=60)
        client = TritonServer(running.host, running.http_port, running.grpc_port)
        held.callback(client.close)
        yield client


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.real(kind)) for kind in ("triton", *OTHERS)])
def test_the_liveness_call_waits_for_the_model_only_where_that_is_known(kind: str, tmp_path: Path) -> None:
    """The model computes for 4 s. Three calls of 1 s in a row fall into them, also on a busy machine."""
    with server_of(kind, tmp_path) as server, ThreadPoolExecutor(1) as pool:
        assert server.is_live(timeout_s=30)
        model = made.misbehaving(MemoryBlobs())["model"] if kind == "triton" else MODEL
        busy = pool.submit(server.infer, model, {"x": np.full((1, 4), 61, np.float32)}, timeout_s=60)
        time.sleep(0.5)
        answers = [server.is_live(timeout_s=1.0) for _ in range(3)]
        assert any(answers) is tells_live(kind)
        assert busy.result().outputs["y"].tolist() == [[122.0] * 4]
        assert server.is_live(timeout_s=30)


@pytest.mark.real("triton")
def test_a_frozen_process_does_not_answer_it(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    with local_launcher(tmp_path, blobs) as launcher:
        manifest = made.doubling(blobs)
        running = start(launcher, manifest)
        launcher.await_loaded(running, manifest["model"], timeout_s=60)
        client = TritonServer(running.host, running.http_port, running.grpc_port)
        try:
            assert _comes_true(lambda: client.is_live(timeout_s=30))
            os.kill(running.pid, signal.SIGSTOP)
            assert _comes_true(lambda: _state(running.pid) == "T")
            assert not client.is_live(timeout_s=0.5)
            os.kill(running.pid, signal.SIGCONT)
            assert _comes_true(lambda: client.is_live(timeout_s=30))
        finally:
            client.close()


def _state(pid: int) -> str:
    """Source: proc(5), the field after the name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def _comes_true(asked: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not (is_true := asked()) and time.monotonic() < until:
        time.sleep(0.1)
    return is_true
