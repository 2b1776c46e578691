"""The web process's own server on real sockets: heads that are slow or large, too many connections, bodies of strangers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from django.db import connection

from sluicegate import web_server
from tests.support.rigs.gateway_rig import free_port
from tests.support.rigs.upload_rig import Installation

WORKS = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Server:
    """BoundedHttp in a thread, before an application that reads everything and answers 200."""

    def __init__(self) -> None:
        self.port = free_port()
        config = uvicorn.Config(
            _echo, host="127.0.0.1", port=self.port, http=web_server.BoundedHttp, loop="asyncio", lifespan="off",
            log_level="critical", timeout_keep_alive=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 60
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def connect(self, data: bytes = b"") -> socket.socket:
        connected = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connected.sendall(data)
        return connected

    def answer(self, data: bytes) -> bytes:
        with self.connect(data) as connected:
            return rest_of(connected)

    def wait_for(self, ranks: Iterable[int]) -> None:
        """Until these are the eviction ranks of all who are connected: a thread that is starved reads nobody's head for a while."""
        deadline = time.monotonic() + 60
        while sorted(str(one._eviction_rank()) for one in list(self._server.server_state.connections)) != sorted(
            map(str, ranks)
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/known":
        web_server.know_sender(scope)
    if scope["path"] == "/long":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
    if scope["path"] == "/large":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 6_000_000})
        return
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def until(connected: socket.socket, end: bytes) -> bool:
    """Whether what comes ends so, before the other side closes."""
    got = b""
    while not got.endswith(end):
        data = connected.recv(65536)
        if not data:
            return False
        got += data
    return True


def rest_of(connected: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    got = b""
    while True:
        try:
            data = connected.recv(65536)
        except ConnectionResetError:
            return got
        if not data:
            return got
        got += data


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(web_server, "HEAD_S", 0.5)
    started = Server()
    yield started
    started.stop()


def test_requests_are_answered_one_after_another_on_one_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "HEAD_S", 60)
    body = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + b"x" * 200_000
    with server.connect(WORKS) as connected:
        assert until(connected, b"\r\n\r\n0")
        connected.sendall(body)
        assert until(connected, b"\r\n\r\n200000")
        connected.sendall(WORKS + body + WORKS)
        got = rest_of(connected)
    assert got.count(b"HTTP/1.1 200") == 3 and b"408" not in got


@pytest.mark.parametrize("begun", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nx: y\r\n", b"\r\n"])
def test_a_head_that_does_not_come_ends(server: Server, begun: bytes) -> None:
    began = time.monotonic()
    with server.connect(begun) as connected:
        assert b"408" in rest_of(connected)
    assert time.monotonic() - began < 30  # without a bound, for ever


def test_a_head_that_comes_in_drops_ends_too(server: Server) -> None:
    with server.connect(WORKS) as connected:
        assert until(connected, b"\r\n\r\n0")  # the second head of a connection is bounded as the first
        began = time.monotonic()
        got = b""
        connected.settimeout(0.05)
        while b"408" not in got and time.monotonic() - began < 60:
            try:
                connected.sendall(b"\r\n")
                got += connected.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
    assert b"408" in got


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nx: " + b"y" * (10 << 20),
        b"GET /" + b"y" * (1 << 20),
        b"GET / HTTP/1.1\r\nx: " + b"y" * 33_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(101)) + b"\r\n",
    ],
    ids=["endless header", "endless path", "long header", "many headers"],
)
def test_a_head_that_is_too_large_is_refused(server: Server, head: bytes) -> None:
    with server.connect() as connected:
        with contextlib.suppress(OSError):  # it may close while we send
            connected.sendall(head)
        got = rest_of(connected)
    assert got == b"" or b"431" in got, got[:200]
    assert b" 200 " in server.answer(WORKS.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))


def test_silent_connections_give_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "HEAD_S", 60)
    monkeypatch.setattr(web_server, "MOST_CONNECTIONS", 20)
    silent = [server.connect(b"GET / HTTP/1.1\r\n") for _ in range(60)]
    try:
        server.wait_for([0] * 20)  # not one more, though many began in one turn of the event loop
        assert b" 200 " in server.answer(WORKS.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert rest_of(silent[0]) == b"", "the one that waited longest is still there"
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize(
    "begun",
    [
        b"POST / HTTP/1.1\r\ncontent-length: 65000\r\n\r\nx",
        b"GET /long HTTP/1.1\r\n\r\n",
        b"GET /large HTTP/1.1\r\nconnection: close\r\n\r\n",
    ],
    ids=["bodies that drip", "answers that nobody reads", "answers that nobody reads on connections that close"],
)
def test_who_keeps_us_waiting_gives_way(server: Server, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(web_server, "MOST_CONNECTIONS", 20)
    body = b"POST /known HTTP/1.1\r\ncontent-length: 2\r\n\r\n"
    known = server.connect(body + b"x")  # it comes first, and would give way first
    server.wait_for([1])
    slow = [server.connect(begun) for _ in range(60)]
    is_body = begun.startswith(b"POST")
    try:
        server.wait_for(
            [0] * 19 + [1] if is_body else [1] * 20
        )  # those of an attacker are with the application, and hold it
        for _ in range(30):
            assert b" 200 " in server.answer(WORKS.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        if is_body:
            known.sendall(b"x")
            assert until(known, b"\r\n\r\n2"), "a stranger's body was let in, and a known sender's ended"
    finally:
        for one in (known, *slow):
            one.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.real("postgres", "valkey")
def test_a_strangers_file_is_refused_at_once_and_nothing_is_kept(tmp_path: Path, settings: Any) -> None:
    url = os.environ["DATABASE_URL"].rpartition("/")[0] + f"/{connection.settings_dict['NAME']}"
    stores = {"DATABASE_URL": url, "SLUICEGATE_BLOB_STORE": settings.BLOB_STORE}
    installation = Installation(tmp_path / "state", stores)
    web = installation.start_web()
    try:
        path = "/api/v1/releases/12345678-1234-1234-1234-123456789012/files/artifact/x"
        head = f"PUT {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 60000000\r\n{{}}\r\n"
        for credentials in ("", "authorization: Bearer sg_garbage\r\n", "cookie: sessionid=garbage\r\n"):
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", installation.port), timeout=60) as connected:
                connected.sendall(head.format(credentials).encode() + b"x" * 1000)
                answer = rest_of(connected)
            assert answer.startswith(b"HTTP/1.1 401") and b"problem+json" in answer, answer[:500]
            assert time.monotonic() - began < 30  # the rest of it never comes
            assert _spooled_bytes(web.pid) == 0
        assert installation.body_bytes() == 0
    finally:
        installation.stop()


def _spooled_bytes(pid: int) -> int:
    """In temporary files that the process has open and deleted."""
    total = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "(deleted)" in os.readlink(link):
                total += link.stat().st_size
        except OSError:
            continue
    return total
