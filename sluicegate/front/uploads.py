"""ASGI middleware that receives upload bytes before Django, which would spool a whole body to disk before authentication.

A part's address is checked before a byte of the part is read; then the bytes go to their place as they arrive, one MiB in
memory at most. Every other body is `BodyMiddleware`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl

from ledger.adapters.database_errors import unavailable
from ledger.core.errors import DomainError, Invalid, Unavailable
from registry.api import parts
from registry.storage.folder import PartWriter
from sluicegate.front.messages import App, Message, Receive, Send, answer, length_of, refuse
from sluicegate.web_server import know_sender

log = logging.getLogger(__name__)

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
                await refuse(error, scope["path"], send)
            except Exception as error:
                log.exception("a part could not be taken")
                said = "The part could not be stored. Send it again."
                await refuse(unavailable(error) or Unavailable("internal", said), scope["path"], send)
        else:
            await self.app(scope, receive, send)

    async def _take(self, upload: str, number: int, scope: Message, receive: Receive, send: Send) -> None:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        ticket = parts.ticket_of(upload, number, query)
        know_sender(scope)
        length = length_of(scope)
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
        await answer(parts.answer(ticket), send)

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
