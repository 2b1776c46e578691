"""Requests that were made beforehand, over each protocol, to a server that answers as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from serving.ports import GRPC, HTTP, PreparedRequests
from serving.servers.adapters.triton import TritonServer
from tests.support.servers.stub_server import Backend, Loop

BATCHES = [{"x": np.ones((1, 4), np.float32)}]


@pytest.fixture
def backend() -> Iterator[Backend]:
    loop = Loop()
    made = Backend(loop, "stub").start()
    yield made
    made.stop()
    loop.close()


@pytest.fixture(params=[GRPC, HTTP])
def requests(backend: Backend, request: Any) -> Iterator[PreparedRequests]:
    server = TritonServer("127.0.0.1", backend.http_port, backend.grpc_port)
    yield server.prepared("sentiment", BATCHES, protocol=request.param)
    server.close()
