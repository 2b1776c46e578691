"""ASGI middleware that receives upload bytes before Django, which would spool a whole body to disk before authentication.

A part's address is checked before a byte of the part is read; then the bytes go to their place as they arrive, one MiB in
memory at most. Every other body is bounded before it is read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl

from django.conf import settings

from accounts.core.addresses import API
from ledger.core.errors import DomainError, Invalid, Unavailable
from registry.api import parts
from registry.storage.folder import PartWriter
from sluicegate.api import CONTENT_TYPE, problem

log = logging.getLogger(__name__)
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

SIMPLE = re.compile(API + r"/releases/[0-9a-f-]{36}/files/.+", re.DOTALL)
#: Largest body that is not a file: a draft that announces the most files, with the longest names.
MAX_BODY_BYTES = 16 << 20
GATHER_BYTES = 1 << 20
#: A connection that sent nothing for this long is dropped; another one may then send the part.
SILENT_S = 60.0


class UploadMiddleware:
    """An ASGI application: takes parts itself, and hands everything else to `app`."""

    def __init__(self, app: App) -> None:
        self.app = app
        # A thread pool of its own: slow fsyncs must not delay other work in threads.
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="parts")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        is_put = is_http and scope["method"] == "PUT"
        if is_put and (found := parts.PATH.fullmatch(scope["path"])):
            try:
                await self._take(found["upload"], int(found["number"]), scope, receive, send)
            except DomainError as error:
                await _refuse(error, scope["path"], send)
            except Exception:
                log.exception("a part could not be taken")
                await _refuse(
                    Unavailable("internal", "The part could not be stored. Send it again."), scope["path"], send
                )
        elif is_http and (refusal := _unbounded(scope) or _over_the_bound(scope)):
            await _refuse(refusal, scope["path"], send)
        else:
            await self.app(scope, receive, send)

    async def _take(self, upload: str, number: int, scope: Message, receive: Receive, send: Send) -> None:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        ticket = parts.ticket_of(upload, number, query)
        length = _length(scope)
        if length is not None and length != ticket.size_bytes:
            raise Invalid(
                "wrong_size",
                f"Part {number} has {ticket.size_bytes} bytes, and {length} are announced. Send just the part.",
            )
        writer = await self._in_thread(parts.writer_for, ticket)
        try:
            await self._write(writer, receive)
        finally:
            await self._in_thread(writer.close)
        await _answer(200, parts.answer(ticket), send, "application/json", closes=False)

    async def _write(self, writer: PartWriter, receive: Receive) -> None:
        """The whole body; that of a part that was received before is read and discarded, as clients expect."""
        gathered, more = bytearray(), True
        while more:
            try:
                message = await asyncio.wait_for(receive(), SILENT_S)
            except TimeoutError:
                raise Invalid("upload_cut_short", "Nothing arrived for a minute. Send the part again.") from None
            if message["type"] == "http.disconnect":
                raise Invalid("upload_cut_short", "The connection ended in mid-part. Send the part again.")
            gathered += message.get("body", b"")
            more = message.get("more_body", False)
            if len(gathered) >= GATHER_BYTES or (gathered and not more):
                if not writer.is_received:
                    await self._in_thread(writer.write, bytes(gathered))
                gathered.clear()
        await self._in_thread(writer.finish)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _unbounded(scope: Message) -> DomainError | None:
    """Refuses a body of unknown length: the views behind would read it as empty."""
    if all(name != b"transfer-encoding" for name, _ in scope["headers"]):
        return None
    return LengthNeeded(
        "length_needed",
        "The body comes in chunks, without a Content-Length. Send it with one, as curl does for a file.",
    )


def _over_the_bound(scope: Message) -> DomainError | None:
    """Why a body of this length is not read, if so."""
    is_file = scope["method"] == "PUT" and SIMPLE.fullmatch(scope["path"]) is not None
    most = settings.MAX_SIMPLE_UPLOAD_BYTES if is_file else MAX_BODY_BYTES
    length = _length(scope) or 0
    if length <= most:
        return None
    fix = f"Upload the file in parts: POST {API}/uploads, see docs/uploads.md." if is_file else "Send less at once."
    return TooLarge(
        "too_large",
        f"{length} bytes are more than the {most} that one request to this address may carry. {fix}",
        max_bytes=most,
    )


class LengthNeeded(DomainError):
    """The body's length is not declared."""

    status = 411


class TooLarge(DomainError):
    """The body is too large for this address."""

    status = 413


def _length(scope: Message) -> int | None:
    text = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(text) if text.isdigit() else None


async def _refuse(error: DomainError, path: str, send: Send) -> None:
    body = problem(error.status, error.code, error.message, **error.facts) | {"instance": path}
    # What is left of the body is not read: the connection ends with the answer.
    await _answer(error.status, body, send, CONTENT_TYPE, closes=True)


async def _answer(status: int, body: dict[str, Any], send: Send, content_type: str, *, closes: bool) -> None:
    data = json.dumps(body).encode()
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(data)).encode())]
    if closes:
        headers.append((b"connection", b"close"))
    if status == 503:
        headers.append((b"retry-after", b"2"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
