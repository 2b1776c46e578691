"""Requests that were made beforehand, on a server that fails as it is told: what each protocol says of it is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from serving.adapters.triton import TritonServer
from serving.ports import GRPC, HTTP, InferenceError, PreparedRequests
from tests.stub_server import FULL, Backend, Loop

BATCHES = [{"x": np.ones((1, 4), np.float32)}]


@pytest.fixture
def backend() -> Iterator[Backend]:
    loop = Loop()
    made = Backend(loop, "stub")
    made.start()
    yield made
    made.stop()
    loop.close()


@pytest.fixture(params=[GRPC, HTTP])
def requests(backend: Backend, request: Any) -> Iterator[PreparedRequests]:
    server = TritonServer("127.0.0.1", backend.http_port, backend.grpc_port)
    yield server.prepared("sentiment", BATCHES, protocol=request.param)
    server.close()


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("error", "server_error"), ("unknown", "server_error"), ("bad_input", "rejected"), ("lost", "rejected"),
        ("full", "full"), ("cut", "unreachable"), ("hang", "timeout"),
    ],
)  # fmt: skip
def test_a_failure_is_told_alike(backend: Backend, requests: PreparedRequests, mode: str, reason: str) -> None:
    requests.connect()
    requests.send(7, timeout_s=30)
    backend.mode = mode
    with pytest.raises(InferenceError) as caught:
        requests.send(0, timeout_s=0.2 if mode == "hang" else 30)
    assert caught.value.reason == reason
    if mode == "full":
        assert caught.value.message == FULL
    backend.mode = "ok"
    requests.send(1, timeout_s=30)


def test_a_server_that_is_not_there_is_unreachable(backend: Backend, requests: PreparedRequests) -> None:
    backend.stop()
    requests.connect()  # says nothing
    with pytest.raises(InferenceError) as caught:
        requests.send(0, timeout_s=30)
    assert caught.value.reason == "unreachable"
