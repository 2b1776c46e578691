"""One POST to an external server: to a checked address, within one time-out, without redirects."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from ledger.adapters.deadline_http import DeadlineConnection
from ledger.adapters.outbound import AddressRefused, resolver
from ledger.core.proxies import proxy_for
from notifications.core.delivery import SNIPPET_CHARACTERS, Outcome
from notifications.core.webhook import url_problem

AGENT = "Sluicegate"
#: A character of the answer's beginning has 4 bytes at the most.
_SNIPPET_BYTES = 4 * SNIPPET_CHARACTERS


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, may_be_private: bool) -> Outcome:
    """Outcome of the POST, with every error in it. Only a status from 200 to 299 is a success.

    The host is resolved once, and the connection uses the checked address: a name that leads elsewhere a moment later
    leads nowhere. The time-out holds for connecting, sending and the beginning of the answer together.
    """
    began, answer, error = time.monotonic(), _Answer(), ""
    until = began + timeout_s
    try:
        if problem := url_problem(url, may_be_private=may_be_private):
            raise AddressRefused(problem)
        parts = urlsplit(url)
        origin = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        proxy = proxy_for(origin, os.environ)
        addresses = resolver(parts.hostname or "", parts.port or 0, proxy=proxy, may_be_private=may_be_private)
        with DeadlineConnection(origin, until, addresses=addresses, proxy=proxy) as line:
            answer.take(line.request("POST", target, body, {"User-Agent": AGENT, "Connection": "close", **headers}))
    except AddressRefused as refused:
        error = str(refused)
    except socket.gaierror as unknown:
        error = f"The host's name cannot be resolved: {unknown.strerror}. Correct the address, or the name service."
    except ssl.SSLError as bad:
        error = f"No secure connection: {_error_text(bad)}. The receiver's certificate must be valid for its host."
    except (OSError, http.client.HTTPException, ValueError) as cut:
        error = f"No answer: {_error_text(cut)}."
    if answer.status is not None:  # a status is enough, even if the body was cut off
        error = answer.problem
    elif time.monotonic() >= until:
        error = f"No answer within {timeout_s:g} s. A receiver answers first, and works afterwards."
    duration_ms = round(1000 * (time.monotonic() - began))
    return Outcome(_short(error), answer.status, answer.snippet, duration_ms, answer.retry_after_s)


@dataclass
class _Answer:
    """The answer so far. `problem`: the error of its status, empty after a success."""

    status: int | None = None
    problem: str = ""
    snippet: str = ""
    retry_after_s: float = 0.0

    def take(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        asked = response.headers.get("Retry-After", "")
        self.retry_after_s = float(asked[:9]) if asked.isascii() and asked.isdigit() else 0.0
        if 300 <= response.status < 400:
            self.problem = f"The receiver redirects ({response.status}), which is not followed. Name the final address."
        elif not 200 <= response.status < 300:
            self.problem = f"The receiver answered {response.status} {response.reason}".rstrip() + "."
        self.snippet = _short(_beginning(response).decode("utf-8", "replace"))


def _beginning(response: http.client.HTTPResponse) -> bytes:
    """As much of the body as comes in time, at most _SNIPPET_BYTES."""
    data = b""
    with response, suppress(OSError, http.client.HTTPException):
        while piece := response.read1(_SNIPPET_BYTES - len(data)):
            data += piece
    return data


def _short(text: str) -> str:
    return text.replace("\x00", "\ufffd")[:SNIPPET_CHARACTERS]


def _error_text(error: BaseException) -> str:
    return str(getattr(error, "strerror", "") or error or type(error).__name__).rstrip(".")
