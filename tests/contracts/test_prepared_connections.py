"""Kept-alive connections of requests that were made beforehand, to a server that ends them as it pleases."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from serving.adapters.triton_requests import opened, parcel_of
from serving.ports import HTTP, InferenceError, PreparedRequests

HOST = "127.0.0.1"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextlib.contextmanager
def asking(answers: int) -> Iterator[tuple[PreparedRequests, list[int]]]:
    """Requests to a server that answers so many and then none; and how many each connection brought. Each ends after one."""
    brought: list[int] = []

    class OneAnswer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            size = 0
            while (line := self.rfile.readline().strip()) or not size:
                if not line:
                    return  # nothing was asked
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            self.rfile.read(size)
            brought.append(size)
            if len(brought) <= answers:
                self.wfile.write(ANSWER)

    with socketserver.ThreadingTCPServer((HOST, 0), OneAnswer) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        batches: list[dict[str, Any]] = [{"x": np.ones((1, 4), np.float32)}]
        requests = opened(parcel_of("m", batches, protocol=HTTP, host=HOST, port=server.server_address[1]))
        try:
            yield requests, brought
        finally:
            requests.close()
            server.shutdown()


def test_a_connection_that_ends_after_its_answer_costs_no_request() -> None:
    with asking(20) as (requests, brought):
        for _ in range(20):
            requests.send(0, timeout_s=30)
        assert len(brought) == 20


def test_what_is_not_answered_on_a_connection_of_its_own_is_unreachable() -> None:
    with asking(1) as (requests, brought):
        requests.send(0, timeout_s=30)
        with pytest.raises(InferenceError) as caught:
            requests.send(0, timeout_s=30)
        assert caught.value.reason == "unreachable" and len(brought) == 2
