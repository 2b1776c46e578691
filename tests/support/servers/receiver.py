"""A webhook's receiver: a real HTTP server that keeps what it gets, answers as it is told, and checks signatures itself."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Got:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def said(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.body)
        return read

    def is_signed_with(self, secret: str) -> bool:
        """As any receiver would check it, sharing no code with the sender."""
        key = base64.b64decode(secret[len("whsec_") :])
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        is_fresh = abs(time.time() - int(self.headers["webhook-timestamp"])) < 300
        return is_fresh and any(hmac.compare_digest(expected, one) for one in self.headers["webhook-signature"].split())


Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Receiver:
    """`answers` are used up one by one, then `always`: a status, or a function that answers by itself."""

    always: int | Answer = 204
    answers: list[int | Answer] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    url: str = ""
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._came = threading.Condition(self._lock)

    def __enter__(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._take(self)

            def do_GET(self) -> None:
                receiver._take(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:  # a sender that gave up is what some tests are about
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        with self._lock:
            self.got.append(Got(request.path, {k.lower(): v for k, v in request.headers.items()}, body))
            answer = self.answers.pop(0) if self.answers else self.always
            self._came.notify_all()
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer(request) if callable(answer) else reply(request, answer)
        finally:
            with self._lock:
                self._at_once -= 1

    def wait_for(self, count: int, within_s: float = 60.0) -> None:
        """Until so many requests have come in all."""
        with self._lock:
            assert self._came.wait_for(lambda: len(self.got) >= count, within_s), f"only {len(self.got)} came"

    @property
    def seqs(self) -> list[int]:
        return [got.said["data"]["seq"] for got in self.got]


def reply(request: BaseHTTPRequestHandler, status: int, text: str = "", **headers: str) -> None:
    body = text.encode()
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def replies(status: int, text: str = "", **headers: str) -> Answer:
    return lambda request: reply(request, status, text, **headers)


def hangs_up(request: BaseHTTPRequestHandler) -> None:
    """The receiver takes the request and closes the connection without a word."""


def says_nothing(request: BaseHTTPRequestHandler) -> None:
    """The receiver takes the request and is silent until the sender has had enough."""
    with contextlib.suppress(OSError):
        request.rfile.read(1)


def trickles(request: BaseHTTPRequestHandler) -> None:
    """A header byte every now and then, until the sender has had enough: no single wait is long, all of them together are."""
    with contextlib.suppress(OSError):
        for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nX-Slow: ", itertools.repeat(ord("x"))):
            request.wfile.write(bytes([byte]))
            request.wfile.flush()
            time.sleep(0.1)


def never_ends(request: BaseHTTPRequestHandler) -> None:
    """A status at once, and then a body of which nothing comes."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    request.wfile.flush()
    says_nothing(request)
