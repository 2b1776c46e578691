"""One POST to somebody else's server: to an address that was checked, within one time-out, following no redirect."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from notifications.core.delivery import SNIPPET_CHARACTERS, Outcome
from notifications.core.webhook import IpAddress, address_problem, url_problem

AGENT = "Sluicegate"
#: A character of the answer's beginning has 4 bytes at the most.
_SNIPPET_BYTES = 4 * SNIPPET_CHARACTERS


class Refused(Exception):
    """The address is one that no webhook goes to. The message says why."""


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, may_be_private: bool) -> Outcome:
    """How it went; whatever goes wrong is in the outcome. Only a status from 200 to 299 is well.

    The host is resolved once, and what was checked is what is connected to: a name that leads elsewhere a moment later
    leads nowhere. The time-out holds for connecting, sending and the beginning of the answer together.
    """
    began = time.monotonic()
    talk = _Talk(began + timeout_s)
    error = ""
    try:
        if problem := url_problem(url, may_be_private=may_be_private):
            raise Refused(problem)
        talk.exchange(urlsplit(url), body, headers, may_be_private=may_be_private)
    except Refused as refused:
        error = str(refused)
    except socket.gaierror as unknown:
        error = f"The host's name cannot be resolved: {unknown.strerror}. Correct the address, or the name service."
    except ssl.SSLError as bad:
        error = f"No secure connection: {_error_text(bad)}. The receiver's certificate must be valid for its host."
    except (OSError, http.client.HTTPException, ValueError) as cut:
        error = f"No answer: {_error_text(cut)}."
    if talk.status is not None:  # it was said; that the rest was cut off does not matter
        error = talk.said
    elif talk.is_over:
        error = f"No answer within {timeout_s:g} s. A receiver answers first, and works afterwards."
    duration_ms = round(1000 * (time.monotonic() - began))
    return Outcome(_short(error), talk.status, talk.snippet, duration_ms, talk.retry_after_s)


@dataclass
class _Talk:
    """One request and what is known of its answer so far. `until` is in monotonic seconds."""

    until: float
    status: int | None = None
    said: str = ""  # by the status: empty when it is a good one
    snippet: str = ""
    retry_after_s: float = 0.0
    _sock: socket.socket | None = None

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def exchange(self, url: SplitResult, body: bytes, headers: Mapping[str, str], *, may_be_private: bool) -> None:
        host, is_secure = url.hostname or "", url.scheme == "https"
        line = http.client.HTTPConnection(host, url.port or (443 if is_secure else 80))
        line.default_port = 443 if is_secure else 80
        self._sock = self._connected(_resolved(host, line.port, may_be_private), line.port)
        # A socket's own time-out begins anew with every byte; this one does not.
        guard = threading.Timer(max(0.0, self.until - time.monotonic()), self._cut)
        guard.daemon = True
        guard.start()
        try:
            if is_secure:
                context = ssl.create_default_context()
                self._sock = context.wrap_socket(self._sock, server_hostname=host, do_handshake_on_connect=False)
                self._sock.do_handshake()
            line.sock = self._sock
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            line.request("POST", target, body, {"User-Agent": AGENT, "Connection": "close", **headers})
            with line.getresponse() as response:
                self._take(response)
        finally:
            guard.cancel()
            line.close()
            self._sock.close()

    def _connected(self, addresses: list[IpAddress], port: int) -> socket.socket:
        """A connection to the first address that takes one."""
        for i, address in enumerate(addresses):
            share_s = max(0.01, (self.until - time.monotonic()) / (len(addresses) - i))
            try:
                sock = socket.create_connection((str(address), port), timeout=share_s)
                sock.settimeout(max(0.01, self.until - time.monotonic()))
                return sock
            except OSError:
                if i == len(addresses) - 1:
                    raise
        raise Refused("The host has no address.")

    def _cut(self) -> None:
        """Ends the conversation, whatever it waits for."""
        if self._sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # not TLS's own, which would say goodbye first

    def _take(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        asked = response.headers.get("Retry-After", "")
        self.retry_after_s = float(asked[:9]) if asked.isascii() and asked.isdigit() else 0.0
        if 300 <= response.status < 400:
            self.said = f"The receiver redirects ({response.status}), which is not followed. Name the final address."
        elif not 200 <= response.status < 300:
            self.said = f"The receiver answered {response.status} {response.reason}".rstrip() + "."
        self.snippet = _short(response.read(_SNIPPET_BYTES).decode("utf-8", "replace"))


def _resolved(host: str, port: int, may_be_private: bool) -> list[IpAddress]:
    """Those of the host's addresses that may be connected to. Raises Refused when there are none, socket.gaierror."""
    found, problem = [], "The host has no address."
    for *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        address = ipaddress.ip_address(str(where[0]).partition("%")[0])
        refused = address_problem(address, may_be_private=may_be_private)
        problem = refused or problem
        found += [] if refused else [address]
    if not found:
        raise Refused(problem)
    return found


def _short(text: str) -> str:
    return text.replace("\x00", "\ufffd")[:SNIPPET_CHARACTERS]


def _error_text(error: BaseException) -> str:
    return str(getattr(error, "strerror", "") or error or type(error).__name__).rstrip(".")
