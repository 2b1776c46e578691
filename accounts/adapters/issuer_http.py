"""JSON from an issuer: within one time-out, of a bounded size, over https, following no redirect."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit, urlunsplit

from ledger.adapters.deadline_http import DeadlineConnection, TooLong
from ledger.adapters.outbound import AddressRefused, resolver
from ledger.core.outbound import host_problem
from ledger.core.proxies import proxy_for

TIMEOUT_S = 5.0
MOST_BYTES = 256 * 1024
AGENT = "Sluicegate"


class IssuerUnreachable(Exception):
    """The issuer gave no usable answer. The message holds the reason, for its administrator."""


def url_problem(url: str) -> str:
    """Why no issuer is asked at this address, or empty: https, or this machine itself. Issuers may have private addresses."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "This is no address."
    if not url.isascii() or not url.isprintable() or " " in url:
        return "An address has printable characters of ASCII only."
    if parts.scheme not in {"https", "http"} or not host:
        return "The address begins with https:// and names a host."
    if parts.username is not None or parts.fragment:
        return "The address has neither a user nor a fragment."
    if parts.scheme == "http" and not _is_loopback(host):
        return "The address begins with https://; http is for this machine alone."
    return host_problem(host, may_be_private=True)


def get_json(url: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The JSON object at the address. Raises IssuerUnreachable."""
    status, read = _ask("GET", url, None, {}, timeout_s)
    if status != 200:
        raise IssuerUnreachable(f"{_shown(url)} answered {status}")
    return read


def post_form(url: str, form: Mapping[str, str], *, user: str, password: str) -> tuple[int, dict[str, Any]]:
    """(status, the JSON object answered) of a token endpoint, asked with HTTP Basic. Raises IssuerUnreachable.

    Source: RFC 6749 2.3.1: user and password are form-encoded before they become Basic.
    """
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if password:
        pair = f"{quote_plus(user)}:{quote_plus(password)}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    else:
        form = {**form, "client_id": user}
    return _ask("POST", url, urlencode(form).encode(), headers, TIMEOUT_S)


def _ask(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> tuple[int, dict[str, Any]]:
    if problem := url_problem(url):
        raise IssuerUnreachable(problem)
    parts = urlsplit(url)
    origin = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    told = {"User-Agent": AGENT, "Accept": "application/json", "Connection": "close", **headers}
    try:
        proxy = proxy_for(origin, os.environ)
        until = time.monotonic() + timeout_s
        addresses = resolver(parts.hostname or "", parts.port or 0, proxy=proxy, may_be_private=True)
        with DeadlineConnection(origin, until, MOST_BYTES, addresses=addresses, proxy=proxy) as line:
            status, answer = line.ask(method, path, body, told)
    except AddressRefused as refused:
        raise IssuerUnreachable(f"{_shown(url)} is never asked: {refused}") from None
    except TooLong:
        raise IssuerUnreachable(f"{_shown(url)} answered more than {MOST_BYTES // 1024} kB") from None
    except TimeoutError:
        raise IssuerUnreachable(f"{_shown(url)} gave no whole answer within {timeout_s:g} s") from None
    except ssl.SSLError as error:
        raise IssuerUnreachable(f"no secure connection to {_shown(url)}: {error.reason or error}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise IssuerUnreachable(f"{_shown(url)} does not answer: {error or type(error).__name__}") from None
    if 300 <= status < 400:
        raise IssuerUnreachable(f"{_shown(url)} redirects ({status}), which is not followed")
    try:
        read = json.loads(answer)
    except (ValueError, RecursionError):
        raise IssuerUnreachable(f"{_shown(url)} answered {status} with what is no JSON") from None
    if not isinstance(read, dict):
        raise IssuerUnreachable(f"{_shown(url)} answered JSON that is no object")
    return status, read


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(url: str) -> str:
    return url.partition("?")[0][:200]
