"""How the web process speaks HTTP: uvicorn's protocol, with a bound on each connection's head and on their number.

uvicorn itself waits for ever for the rest of a head, and reads one of any length: `uvicorn --http sluicegate.web_server:BoundedHttp`.
What comes after the head is `BodyMiddleware`'s.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Request line and headers together. The longest that a browser sends us are below 4 KiB; nginx takes 32 KiB as well.
HEAD_BYTES: Final = 32 << 10
MOST_HEADERS: Final = 100
#: How long a connection may take over a head, from its first byte (or its own beginning). Source: Apache's RequestReadTimeout
#: gives 20 s to one that keeps sending; ours come from a proxy beside us, or from this machine.
HEAD_S: Final = 10.0
#: Connections at once; most systems allow a process 1,024 files. At the bound one gives way that waits for its caller: `_make_room`.
MOST_CONNECTIONS: Final = 512
_WORDS: Final = {
    408: (b"Request Timeout", b"The head of the request did not arrive in time. Send it at once."),
    431: (b"Request Header Fields Too Large", b"The head of the request is too large. Send fewer and shorter headers."),
}


_KNOWN: Final = "sender_is_known"
_KEPT: Final = "end_kept_open"
_ABORT: Final = "abort_connection"
#: Who leaves unacknowledged for so long what was sent is gone, as a closed laptop is. (One that merely reads slowly acknowledges.)
GONE_MS: Final = 30_000


def know_sender(scope: MutableMapping[str, Any]) -> None:
    """An application notes in a request's ASGI scope that somebody known sends its body: strangers' bodies give way first."""
    scope.setdefault("state", {})[_KNOWN] = True


def keep_open(scope: MutableMapping[str, Any], end: Callable[[], object]) -> None:
    """An application notes that an answer of its own goes on and on. The bounds here leave it alone, as the application has its
    own; when this server stops, it calls `end`, and does not wait for the answer before that."""
    scope.setdefault("state", {})[_KEPT] = end


def cut_off(scope: MutableMapping[str, Any]) -> None:
    """Ends the request's connection now, and what was not sent yet stays unsent. (Other servers close it when they may.)"""
    abort = scope.get("state", {}).get(_ABORT)
    if abort is not None:
        abort()


def raise_file_limit() -> int:
    """Bound of open files of this process, after it has raised the bound, 8,192 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return 8192 if soft == resource.RLIM_INFINITY else soft


class BoundedHttp(HttpToolsProtocol):
    """Ends a connection with a head that is too large (431) or too slow (408), or an idle connection while others wait."""

    _is_in_head = True
    _is_refused = False
    _is_evicted = False
    _head_bytes = 0
    _since = 0.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
        self._begin_head()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_head and self._head_timer is None:
            self._begin_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > HEAD_BYTES:
            self._refuse(431)

    def on_headers_complete(self) -> None:
        self._end_head()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEAD_BYTES or len(self.headers) > MOST_HEADERS:
            self._refuse(431)
        else:
            self.scope["state"][_ABORT] = self.transport.abort
            super().on_headers_complete()

    def shutdown(self) -> None:
        super().shutdown()
        end = self._kept_open()
        if end is not None:
            end()

    def _kept_open(self) -> Callable[[], object] | None:
        """The end of the answer that is kept open, or None."""
        end: Callable[[], object] | None = self.cycle.scope["state"].get(_KEPT) if self._is_answering() else None
        return end

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head, self._head_bytes = True, 0  # that of the next request on this connection
        if not self._is_refused:
            super().on_message_complete()

    def _begin_head(self) -> None:
        self._since = self.loop.time()
        self._head_timer = self.loop.call_later(HEAD_S, self._on_late)

    def _end_head(self) -> None:
        self._is_in_head, self._head_bytes = False, 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_late(self) -> None:
        self._head_timer = None
        if self._is_answering():  # half a request behind an open answer: it waits for that answer
            self._begin_head()
        else:
            self._refuse(408)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int) -> None:
        self._is_refused = True
        self._end_head()
        if self.transport.is_closing():
            return
        if not self._is_answering():  # else the answer would stand inside another answer
            title, said = _WORDS[status]
            head = b"HTTP/1.1 %d %s\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (status, title, len(said)) + said)
        self.transport.close()

    def _eviction_rank(self) -> int | None:
        """How soon this connection gives way to another one, 0 first; None while its caller waits for us.

        1 is who is known and sends a body, and who takes an answer slowly: both may do honest work. One that closes, and whose
        caller does not take the rest, would close for ever: it gives way like one that takes an answer slowly.
        """
        if self.transport.is_closing():
            return 1
        if not self._is_answering():
            return 0
        if self.cycle.more_body:
            return 1 if self.cycle.scope["state"].get(_KNOWN) else 0
        return 1 if self.flow.write_paused else None

    def _make_room(self) -> None:
        """Above the bound, ends the oldest of the connections that give way soonest; this one where everybody else waits for us.

        One that was ended in this turn of the event loop is in the list still, and many connections may begin in one turn.
        """
        ours = [one for one in self.connections if isinstance(one, BoundedHttp) and not one._is_evicted]
        held = [one for one in ours if one._kept_open() is None]
        if len(held) > MOST_CONNECTIONS:
            others = [one for one in held if one is not self]
            ranked = [(rank, one._since, id(one), one) for one in others if (rank := one._eviction_rank()) is not None]
            evicted = min(ranked, default=(0, 0.0, 0, self))[-1]
            evicted._is_evicted = True
            evicted.transport.abort()
