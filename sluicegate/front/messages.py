"""Shared parts of the ASGI middlewares in front of Django: read a head, and answer without Django."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from django.conf import settings
from django.template.loader import render_to_string

from ledger.core.errors import DomainError
from sluicegate.api import CONTENT_TYPE, problem
from web.security_headers import CONTENT_SECURITY_POLICY

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

_SESSION: Final = re.compile(rb"(?:^|;)\s*" + settings.SESSION_COOKIE_NAME.encode() + rb"=([^;]+)")


def header(scope: Message, name: bytes) -> bytes:
    """The first header of this (lower-case) name, or an empty string."""
    return next((bytes(value) for found, value in scope["headers"] if found == name), b"")


def credential(scope: Message) -> str:
    """Digest of the credentials; empty without credentials."""
    session = _SESSION.search(header(scope, b"cookie"))
    shown = header(scope, b"authorization") or (session[1] if session else b"")
    return hashlib.sha256(shown).hexdigest() if shown else ""


def length_of(scope: Message) -> int | None:
    """The body's length in bytes, as its head declares it, or None."""
    text = header(scope, b"content-length")
    return int(text) if text.isdigit() else None


async def refuse(error: DomainError, path: str, send: Send) -> None:
    """The refusal as problem JSON. The rest of the body is not read: the connection ends with the answer."""
    body = problem(error.status, error.code, error.message, **error.facts) | {"instance": path}
    await _send(error.status, json.dumps(body).encode(), CONTENT_TYPE, send, _ends_with(error))


async def refuse_page(error: DomainError, send: Send) -> None:
    """The same to a browser: a page with the sentence."""
    policy = (b"content-security-policy", CONTENT_SECURITY_POLICY.encode())
    page = render_to_string("web/refusal_bare.html", {"error": error}).encode()
    await _send(error.status, page, "text/html; charset=utf-8", send, [policy, *_ends_with(error)])


async def answer(body: dict[str, Any], send: Send) -> None:
    """200, as JSON."""
    await _send(200, json.dumps(body).encode(), "application/json", send, [])


def _ends_with(error: DomainError) -> list[tuple[bytes, bytes]]:
    headers = [(b"connection", b"close")]
    if error.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="sluicegate"'))
    if error.status == 503:
        headers.append((b"retry-after", str(error.facts.get("retry_after_s", 2)).encode()))
    return headers


async def _send(status: int, data: bytes, content_type: str, send: Send, more: list[tuple[bytes, bytes]]) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(data)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
