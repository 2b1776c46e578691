"""Requests that share a batch on this runtime's runner, in a real Triton: each gets its own answer.

User code may well fail a whole batch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.ports import InferenceError
from serving.servers.adapters.triton import TritonServer
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.triton_rig import local_launcher

pytestmark = [pytest.mark.real("triton"), pytest.mark.shows("backend:triton/sluicegate-onnx")]


@pytest.fixture
def batching(tmp_path: Path) -> Iterator[Callable[[int], TritonServer]]:
    """A server of the model `words`, which waits for so many requests to share a batch."""
    blobs, held = MemoryBlobs(), contextlib.ExitStack()
    launcher = held.enter_context(local_launcher(tmp_path, blobs))

    def start(size: int) -> TritonServer:
        batches = {"preferred_batch_size": [size], "max_queue_delay_us": 400_000}
        manifest = made.words(blobs, dynamic_batching=batches)
        running = launcher.start(launch_spec(manifest, launcher.folder_for(1, "words", "r1")))
        launcher.await_loaded(running, "words", timeout_s=60)
        client = TritonServer(running.host, running.http_port, running.grpc_port)
        held.callback(client.close)
        return client

    with held:
        yield start


def executions_of(server: TritonServer) -> int:
    """How often the model ran. Triton counts a run after it has answered, and leaves a count of 0 out."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        stats = server.statistics("words")["model_stats"][0]
        if stats.get("execution_count"):
            return int(stats["execution_count"])
        time.sleep(0.02)
    raise AssertionError("no execution was counted within 60 s")


def test_a_bad_request_does_not_poison_its_batch(batching: Callable[[int], TritonServer]) -> None:
    server = batching(4)
    outcomes: dict[int, str] = {}

    def work(number: int, text: bytes) -> None:
        try:
            answer = server.infer("words", {"text": np.array([[text]], dtype=object)}, timeout_s=30)
            outcomes[number] = str(answer.outputs["total"].tolist())
        except InferenceError as error:
            outcomes[number] = error.reason

    threads = [
        threading.Thread(target=work, args=(n, text))
        for n, text in enumerate([b"good", b"\xff", b"good bad film", b"bad"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == {0: "[[2]]", 1: "rejected", 2: "[[9]]", 3: "[[3]]"}
    assert executions_of(server) < 4  # they did share a batch


def test_texts_of_all_lengths_that_share_a_batch_get_their_own_answers(batching: Callable[[int], TritonServer]) -> None:
    server = batching(8)
    counts = [[1], [100], [2, 90], [3], [40], [1], [5]]
    got: dict[int, Any] = {}

    def work(number: int) -> None:
        texts = np.array([["good " * count] for count in counts[number]], dtype=object)
        got[number] = server.infer("words", {"text": texts}, timeout_s=30).outputs["length"][:, 0].tolist()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == dict(enumerate(counts))
    assert executions_of(server) < len(counts)
