"""A server that plays a test's event streams, byte for byte."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from serving.traffic.core.routes import ServerAddress

HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
DONE: Final = b"data: [DONE]\n\n"


def chat(text: str = "a", reason: str | None = None, **more: Any) -> bytes:
    """An event of a chat."""
    delta = {"content": text} if text else {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": {**delta, **more}, "finish_reason": reason}
    return event({"choices": [choice]})


def completion(text: str = "a") -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def error(code: int | str, message: str = "no") -> bytes:
    return event({"error": {"message": message, "type": "x", "code": code}})


@dataclass(frozen=True)
class Play:
    """Bytes of one answer with pauses (seconds) between them. `ends`: "whole"; "cut": without the last chunk; "hold": stays open."""

    parts: Sequence[bytes | float]
    ends: str = "whole"
    head: bytes = HEAD


@dataclass
class EventServer:
    port: int
    plays: list[Play] = field(default_factory=list)  # in turn, again and again
    is_over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> ServerAddress:
        return ServerAddress("127.0.0.1", self.port, self.port)

    def next(self) -> Play:
        with self._lock:
            play = self.plays.pop(0)
            self.plays.append(play)
            return play


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line:
                return
            head += line
        size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        self.rfile.read(size)
        owner: EventServer = self.server.owner  # type: ignore[attr-defined]
        play = owner.next()
        with suppress(OSError):
            self._play(owner, play)

    def _play(self, owner: EventServer, play: Play) -> None:
        if b"\r\n\r\n" in play.head:  # a whole answer
            self.wfile.write(play.head)
            return
        if play.head:
            self.wfile.write(play.head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        for part in play.parts:
            if isinstance(part, bytes):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            else:
                time.sleep(part)
        if play.ends == "whole":
            self.wfile.write(b"0\r\n\r\n")
        elif play.ends == "hold":
            owner.is_over.wait(60)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    owner: EventServer


@contextmanager
def event_server(*plays: Play) -> Iterator[EventServer]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.owner = EventServer(server.server_address[1], list(plays))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server.owner
        server.owner.is_over.set()
        server.shutdown()
        thread.join()
