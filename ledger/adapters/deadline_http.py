"""HTTP whose time-out holds for everything together: connecting, the handshake, headers, and a body that trickles."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ledger.core.proxies import without_login

#: The scheme of a URL that names a socket file of this machine: unix:/path.
UNIX = "unix"
_LONGEST_HEAD = 16_384


class TooLong(Exception):
    """The answer has more bytes than were allowed."""


def addresses_of(host: str, port: int) -> Sequence[str]:
    """All of the host's addresses, as the name service has them. Raises socket.gaierror."""
    return [str(where[0]) for *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@dataclass
class DeadlineConnection:
    """One connection to `url` (http or https, user and password in it if need be; or unix:/path, a socket file), kept open for several
    requests.

    `deadline` is in monotonic seconds and holds for all that is asked until another is set. http.client's own time-out begins
    anew with every piece that arrives, so that a byte a second would hold its caller for hours. `addresses` resolves the host:
    what it returns, and nothing else, is connected to. `connections` counts those that were made. `context`: for https with certificates
    of one's own; with `identity`, a URI, the server's certificate must name that instead of the host. `proxy`: the http:// address of
    a proxy that leads there; then `addresses` resolves the proxy's host, and the proxy that of the URL.
    """

    url: str
    deadline: float
    most_bytes: int = 16 * 2**20
    addresses: Callable[[str, int], Sequence[str]] = addresses_of
    context: ssl.SSLContext | None = field(default=None, repr=False)
    identity: str = ""
    proxy: str = field(default="", repr=False)
    connections: int = field(default=0, init=False)
    _line: http.client.HTTPConnection | None = field(default=None, init=False, repr=False)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """(status, the whole body). Raises as `request` does, and TooLong; the line is then closed."""
        answer = self.request(method, path, body, headers)
        try:
            pieces, size = [], 0
            while piece := answer.read1(2**20):
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

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """The answer, of which status and headers are here; reading its body is held to the deadline as well.

        Raises TimeoutError, OSError (socket.gaierror and ssl.SSLError among them), http.client.HTTPException; the line is then
        closed.
        """
        parts = urlsplit(self.url)
        try:
            line = self._line or self._connect(parts)
            base = "" if parts.scheme == UNIX else parts.path.rstrip("/")
            told = {**_login(parts), **(headers or {})}
            if self.proxy and parts.scheme == "http":
                base = f"http://{parts.netloc.rpartition('@')[2]}{base}"
                told |= _proxy_login(self.proxy)
            line.request(method, base + path, body, told)
            return line.getresponse()
        except BaseException:
            self.close()
            raise

    def is_quiet(self) -> bool:
        """Whether a kept-alive connection is still open: a closed one is readable, at end of file."""
        sock: Any = self._line.sock if self._line is not None else None
        return isinstance(sock, _TimedSocket) and sock.is_quiet()

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        is_secure, is_file = parts.scheme == "https", parts.scheme == UNIX
        host = "localhost" if is_file else parts.hostname or ""
        line = http.client.HTTPConnection(host, parts.port or (443 if is_secure else 80))
        line.default_port = 443 if is_secure else 80  # which the Host header leaves out
        sock = self._reached_file(parts.path) if is_file else self._reached_host(host, line.port)
        try:
            if not is_file:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_secure:
                if self.proxy:
                    self._tunnel(sock, host, line.port)
                sock = self._secured(sock, host)
        except BaseException:
            sock.close()
            raise
        line.sock = _TimedSocket(sock, self)
        self._line = line
        self.connections += 1
        return line

    def _secured(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        context = self.context or ssl.create_default_context()
        context.check_hostname = not self.identity
        secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        try:  # the socket that was wrapped is nobody's any more: closing that one would close nothing
            secured.settimeout(self.left_s())
            secured.do_handshake()
            names = (secured.getpeercert() or {}).get("subjectAltName", ())
            if self.identity and ("URI", self.identity) not in names:
                raise ssl.SSLCertVerificationError(f"the certificate is not that of {self.identity}")
        except BaseException:
            secured.close()
            raise
        return secured

    def _reached_file(self, path: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.left_s())
            sock.connect(path)
        except BaseException:
            sock.close()
            raise
        return sock

    def _reached_host(self, host: str, port: int) -> socket.socket:
        """A connection to the host, or to the proxy that leads there."""
        if not self.proxy:
            return self._reached(host, port)
        there = urlsplit(self.proxy)
        if there.scheme != "http":
            raise OSError(
                f"the environment names the proxy {without_login(self.proxy)}, and only http:// ones are spoken to"
            )
        return self._reached(there.hostname or "", there.port or 80)

    def _tunnel(self, sock: socket.socket, host: str, port: int) -> None:
        """Asks the proxy for a tunnel to the host. Raises OSError with the proxy's refusal."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        login = "".join(f"{name}: {value}\r\n" for name, value in _proxy_login(self.proxy).items())
        sock.settimeout(self.left_s())
        sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the host's
            sock.settimeout(self.left_s())
            piece = sock.recv(1)
            if not piece or len(head) > _LONGEST_HEAD:
                raise OSError(f"the proxy {without_login(self.proxy)} gave no answer")
            head += piece
        status = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2]
        if not status.startswith("2"):
            raise OSError(f"the proxy {without_login(self.proxy)} does not lead to {target}: {status}")

    def _reached(self, host: str, port: int) -> socket.socket:
        """A connection to the first address that takes one. Each has its share of the time that is left."""
        addresses = self.addresses(host, port)
        for i, address in enumerate(addresses):
            try:
                return socket.create_connection((address, port), timeout=self.left_s() / (len(addresses) - i))
            except OSError:
                if i == len(addresses) - 1:
                    raise
        raise OSError(f"{host} has no address")

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


def _login(parts: SplitResult, header: str = "Authorization") -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {header: f"Basic {b64encode(pair.encode()).decode()}"}


def _proxy_login(proxy: str) -> dict[str, str]:
    return _login(urlsplit(proxy), "Proxy-Authorization")


class _TimedSocket:
    """What http.client uses of a socket; each use waits no longer than what is left."""

    def __init__(self, sock: socket.socket, line: DeadlineConnection) -> None:
        self._sock, self._line = sock, line

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while len(left):
            self._sock.settimeout(self._line.left_s())
            left = left[self._sock.send(left) :]

    def is_quiet(self) -> bool:
        self._sock.settimeout(0)
        try:
            self._sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

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
