"""What the ASGI middlewares in front of Django share: reading a head, and answering without Django."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from django.conf import settings

from ledger.core.errors import DomainError
from sluicegate.api import CONTENT_TYPE, problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

_SESSION: Final = re.compile(rb"(?:^|;)\s*" + settings.SESSION_COOKIE_NAME.encode() + rb"=([^;]+)")


def header(scope: Message, name: bytes) -> bytes:
    """The first header of this (lower-case) name; empty where there is none."""
    return next((bytes(value) for found, value in scope["headers"] if found == name), b"")


def credential(scope: Message) -> str:
    """What says who asks, as a digest; empty for who shows nothing."""
    session = _SESSION.search(header(scope, b"cookie"))
    shown = header(scope, b"authorization") or (session[1] if session else b"")
    return hashlib.sha256(shown).hexdigest() if shown else ""


def length_of(scope: Message) -> int | None:
    """The body's length in bytes, as its head declares it; None where it does not."""
    text = header(scope, b"content-length")
    return int(text) if text.isdigit() else None


async def refuse(error: DomainError, path: str, send: Send) -> None:
    """The refusal as problem JSON. What is left of the body is not read: the connection ends with the answer."""
    body = problem(error.status, error.code, error.message, **error.facts) | {"instance": path}
    await answer(error.status, body, send, CONTENT_TYPE, closes=True)


async def answer(status: int, body: dict[str, Any], send: Send, content_type: str, *, closes: bool) -> None:
    data = json.dumps(body).encode()
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(data)).encode())]
    if closes:
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="sluicegate"'))
    if status == 503:
        headers.append((b"retry-after", str(body.get("retry_after_s", 2)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
