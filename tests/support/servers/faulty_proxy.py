"""A proxy between a reader and what it reads over HTTP, which spoils answers as it is told."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

#: ok · error: 500 · hang: half a body, then silence · trickle: a byte at a time for ever · refuse: nobody listens
#: · garbage: bytes that are no text · nan: every number is NaN · empty: 200 without a body · frozen: the answers of the
#: moment it began · cut: the connection ends in the middle of the body · busy: 503
MODES = ("ok", "error", "hang", "trickle", "refuse", "garbage", "nan", "empty", "frozen", "cut", "busy")
_NUMBER = re.compile(rb'(?<=[ "])\d+(?:\.\d+)?(?=["\n])')


class FaultyProxy:
    """Listens on a loopback port of its own and asks `target` ("http://host:port") for everything that it is asked."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.requests = 0
        self._mode = "ok"
        self._kept: dict[tuple[str, str, bytes], tuple[int, bytes]] = {}
        self._stop = threading.Event()
        self._listener: socket.socket | None = None
        self._open = set[socket.socket]()
        self._port = 0
        self._listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def mode(self) -> str:
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        assert mode in MODES
        was, self._mode = self._mode, mode
        if mode != was and mode != "frozen":
            self._kept.clear()
        if mode == "refuse":
            self._hush()
        elif was == "refuse":
            self._listen()

    def close(self) -> None:
        self._stop.set()
        self._hush()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(64)
        self._port, self._listener = listener.getsockname()[1], listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _hush(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        self._open.add(one)
        with contextlib.suppress(OSError, ValueError), one, one.makefile("rb") as reader:
            while line := reader.readline():
                method, path, _ = line.decode().split(" ", 2)
                headers = http.client.parse_headers(reader)
                body = reader.read(int(headers.get("Content-Length") or 0))
                self.requests += 1
                if not self._answer(one, method, path, body, headers.get("Content-Type")):
                    break
        self._open.discard(one)

    def _answer(self, one: socket.socket, method: str, path: str, body: bytes, kind: str | None) -> bool:
        """Whether the connection may be used again."""
        mode = self._mode
        if mode in {"error", "busy"}:
            status, said = (500, b"the process is out of file descriptors") if mode == "error" else (503, b"busy")
            return _send(one, status, said)
        status, said = self._fetch(method, path, body, kind, keep=mode == "frozen")
        if mode == "garbage":
            said = bytes(range(128, 256)) * 8
        elif mode == "nan":
            said = _NUMBER.sub(b"NaN", said)
        elif mode == "empty":
            said = b""
        elif mode in {"hang", "trickle", "cut"}:
            one.sendall(_head(status, len(said)) + said[: len(said) // 2])
            until = time.monotonic() + 60
            for i in range(len(said) // 2, len(said)):
                if mode == "cut" or time.monotonic() > until or self._stop.wait(0.1 if mode == "trickle" else 60):
                    break
                one.sendall(said[i : i + 1])
            return False
        return _send(one, status, said)

    def _fetch(self, method: str, path: str, body: bytes, kind: str | None, *, keep: bool) -> tuple[int, bytes]:
        key = method, path, re.sub(rb"&?(time|timeout)=[^&]*", b"", body)
        if keep and key in self._kept:
            return self._kept[key]
        line = http.client.HTTPConnection(urlsplit(self.target).netloc, timeout=5)
        try:
            line.request(method, path, body or None, {"Content-Type": kind} if kind else {})
            answer = line.getresponse()
            found = answer.status, answer.read()
        except OSError:
            found = 502, b"nobody is behind this proxy"
        finally:
            line.close()
        self._kept[key] = found
        return found


def _head(status: int, size: int) -> bytes:
    return f"HTTP/1.1 {status} {http.client.responses[status]}\r\nContent-Length: {size}\r\n\r\n".encode()


def _send(one: socket.socket, status: int, said: bytes) -> bool:
    one.sendall(_head(status, len(said)) + said)
    return True


@contextlib.contextmanager
def faulty_proxy(target: str) -> Iterator[Any]:
    proxy = FaultyProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
