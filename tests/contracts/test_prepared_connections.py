"""Kept-alive connections of requests that were made beforehand, to a server that ends them as it pleases."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from serving.ports import HTTP, InferenceError, PreparedRequests
from serving.servers.adapters.triton_requests import opened, parcel_of
from tests.support.rigs.gateway_rig import wait_until

HOST = "127.0.0.1"


class OneAnswer(socketserver.ThreadingTCPServer):
    """Answers the first request of each connection, `answers` in all, and ends the connection: behind the answer, or where it `drops` as it
    has read the next request."""

    def __init__(self, answers: int, status: int, *, drops: bool) -> None:
        self.left, self.status, self.drops = answers, status, drops
        self.read, self.ended = 0, 0
        super().__init__((HOST, 0), _Connection)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.ended += 1


class _Connection(socketserver.StreamRequestHandler):
    server: OneAnswer

    def handle(self) -> None:
        if self._is_asked() and self.server.left:
            self.server.left -= 1
            self.wfile.write(b"HTTP/1.1 %d As told\r\nContent-Length: 2\r\n\r\n{}" % self.server.status)
            if self.server.drops:
                self._is_asked()

    def _is_asked(self) -> bool:
        size = 0
        while line := self.rfile.readline().strip():
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        self.rfile.read(size)
        self.server.read += bool(size)
        return bool(size)


@contextlib.contextmanager
def asking(answers: int, status: int = 200, *, drops: bool = False) -> Iterator[tuple[PreparedRequests, OneAnswer]]:
    with OneAnswer(answers, status, drops=drops) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        batches: list[dict[str, Any]] = [{"x": np.ones((1, 4), np.float32)}]
        requests = opened(parcel_of("m", batches, protocol=HTTP, host=HOST, port=server.server_address[1]))
        try:
            yield requests, server
        finally:
            requests.close()
            server.shutdown()


def sent(requests: PreparedRequests) -> str:
    """The reason for which it failed; empty where it did not."""
    try:
        requests.send(0, timeout_s=30)
    except InferenceError as error:
        return error.reason
    return ""


def test_a_connection_that_ended_after_its_answer_costs_no_request() -> None:
    with asking(20) as (requests, server):
        for at in range(20):
            assert sent(requests) == ""
            wait_until(lambda at=at: server.ended > at, "the end of the connection", timeout_s=60)
        assert server.read == 20


@pytest.mark.parametrize("drops", [False, True])
def test_an_exception_behind_which_the_connection_ends_costs_no_other_request(drops: bool) -> None:
    with asking(20, 500, drops=drops) as (requests, server):
        assert [sent(requests) for _ in range(20)] == ["server_error"] * 20
        assert server.read == 20


def test_what_a_server_reads_and_drops_is_not_sent_again() -> None:
    with asking(20, drops=True) as (requests, server):
        found = Counter(sent(requests) for _ in range(20))
        assert found == {"": 10, "unreachable": 10} and server.read == 20


def test_what_is_not_answered_on_a_connection_of_its_own_is_unreachable() -> None:
    with asking(1) as (requests, server):
        assert sent(requests) == ""
        wait_until(lambda: server.ended, "the end of the connection", timeout_s=60)
        assert sent(requests) == "unreachable" and server.read == 2
