"""Where gateways send mirrored requests: an ASGI application that takes them and answers at once, with nothing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from typing import Any

from rollouts.prober.prober import Prober
from rollouts.prober.requests import MAX_BODY_BYTES
from serving.traffic.control_plane.virtual_hosts import MIRROR_HEADER, MIRROR_SECRET_HEADER

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
STATUS_PATH = "/status"


class MirrorEndpoint:
    """`GET /status` shows the counts of the requests so far; everything else is a mirrored request, answered 204.

    Who does not know `secret` gets 403 for either, unread and uncounted: a copy that no gateway sent is no evidence.
    """

    def __init__(self, prober: Prober, secret: str) -> None:
        self._prober, self._secret = prober, secret.encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        raw = dict(scope["headers"])
        if not compare_digest(raw.pop(MIRROR_SECRET_HEADER.encode(), b""), self._secret):
            await _answer(send, 403)
            return
        if scope["method"] == "GET" and scope["path"] == STATUS_PATH:
            await _answer(send, 200, json.dumps(self._prober.status()).encode())
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw.items()}
        body = await _body(receive)
        await _answer(send, 204)
        route = headers.get(MIRROR_HEADER, "")
        if body is None:
            self._prober.book.note("too_large")
        elif not route.isdecimal():
            self._prober.book.note("no_route")
        else:
            self._prober.shadowing.take(int(route), scope["path"], headers, body)


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None if it is too large or was cut off."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        size += len(message["body"])
        if size <= MAX_BODY_BYTES:
            parts.append(message["body"])
        else:
            parts.clear()
        if not message.get("more_body", False):
            return b"".join(parts) if size <= MAX_BODY_BYTES else None


async def _answer(send: Send, status: int, body: bytes = b"") -> None:
    kind = [(b"content-type", b"application/json")] if body else []
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": body})
