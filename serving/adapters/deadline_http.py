"""HTTP whose time-out holds for everything together: connecting, headers, and a body that trickles."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit


class TooLong(Exception):
    """The answer has more bytes than were allowed."""


@dataclass
class DeadlineConnection:
    """One connection to `url` (http or https, user and password in it if need be), kept open for several requests.

    `deadline` is in monotonic seconds and holds for all that is asked. http.client's own time-out begins anew with every
    piece that arrives, so that a byte a second would hold its caller for hours.
    """

    url: str
    deadline: float
    most_bytes: int = 16 * 2**20
    _line: http.client.HTTPConnection | None = field(default=None, repr=False)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """(status, body). Raises TimeoutError, OSError, http.client.HTTPException, TooLong; the line is then closed."""
        parts = urlsplit(self.url)
        try:
            line = self._line or self._connect(parts)
            line.request(method, parts.path.rstrip("/") + path, body, {**_login(parts), **(headers or {})})
            answer = line.getresponse()
            pieces, size = [], 0
            while piece := answer.read1(2**16):
                pieces.append(piece)
                size += len(piece)
                if size > self.most_bytes:
                    raise TooLong(f"more than {self.most_bytes} bytes")
            if answer.length:  # http.client takes a body that is cut short for a whole one
                raise http.client.IncompleteRead(b"".join(pieces), answer.length)
            answer.close()
            if answer.will_close:
                self._line = None
            return answer.status, b"".join(pieces)
        except BaseException:
            self.close()
            raise

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        host, left_s = parts.hostname or "", self.left_s()
        if parts.scheme == "https":
            line: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=left_s, context=ssl.create_default_context()
            )
        else:
            line = http.client.HTTPConnection(host, parts.port, timeout=left_s)
        self._line = line
        line.connect()
        line.sock = _TimedSocket(line.sock, self)
        return line

    def left_s(self) -> float:
        """Seconds until the deadline. Raises TimeoutError when it has passed."""
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the time-out has passed")
        return left_s

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def __enter__(self) -> DeadlineConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def shown(url: str) -> str:
    """The URL without user and password, for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _login(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


class _TimedSocket:
    """What http.client uses of a socket; each use waits no longer than what is left."""

    def __init__(self, sock: socket.socket, line: DeadlineConnection) -> None:
        self._sock, self._line = sock, line

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._line.left_s())
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._line))

    def close(self) -> None:
        self._sock.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, line: DeadlineConnection) -> None:
        self._sock, self._line = sock, line
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._line.left_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
