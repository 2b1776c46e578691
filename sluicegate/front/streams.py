"""ASGI middleware that keeps the event streams of live pages open, in front of Django, which would keep a thread for each.

A stream says which pages changed and nothing of what they say (`sluicegate.live.frames`); docs/live.md tells the whole of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from accounts.api.credentials import Unknown
from ledger.adapters.database_errors import unavailable
from ledger.core.errors import DomainError, Refused, Unavailable
from sluicegate.front.messages import App, Message, Receive, Send, header, refuse
from sluicegate.live import frames
from sluicegate.live.hub import Hub
from sluicegate.live.readers import reader_of
from sluicegate.live.stream import Stream
from sluicegate.web_server import MOST_CONNECTIONS, cut_off, keep_open, raise_file_limit

log = logging.getLogger(__name__)

PATH: Final = "/_stream"
#: A stream that has nothing to say says so, so often; a page without a word for 12 s says that it has no news.
BEAT_S: Final = 10.0
#: Streams of a process at most, where it may have enough files open; a database, threads and static files need some as well.
MOST_STREAMS: Final = 1000
_OTHER_FILES: Final = 192
#: A last word must go out within this time; then the connection is cut off.
LAST_WORD_S: Final = 2.0
_AGAIN_S: Final = 15
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx would gather it
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'"),
]


class NoSuchMethod(DomainError):
    """The stream is read with GET alone."""

    status = 405


class StreamMiddleware:
    """An ASGI application: answers `PATH` itself, and hands everything else to `app`, noting how far the log was read by then.

    So a page that was made from a request can ask for what came after it: `request.scope["state"]["seq"]`, where it is known.
    """

    def __init__(self, app: App, make_hub: Callable[[], Hub] | None = None) -> None:
        self.app = app
        self._make_hub = make_hub or (
            lambda: Hub(min(MOST_STREAMS, raise_file_limit() - MOST_CONNECTIONS - _OTHER_FILES))
        )
        self._hub: Hub | None = None

    @property
    def hub(self) -> Hub:
        """Made within the event loop that its streams live in."""
        if self._hub is None:
            self._hub = self._make_hub()
        return self._hub

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] == PATH:
            try:
                await self._serve(scope, receive, send)
            except DomainError as error:
                await refuse(error, PATH, send)
        else:
            if self.hub.is_fresh:
                scope.setdefault("state", {})["seq"] = self.hub.seq
            await self.app(scope, receive, send)

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            raise NoSuchMethod("no_such_method", "The stream is read with GET.")
        if header(scope, b"sec-fetch-site") not in (b"", b"same-origin", b"none"):
            raise Refused("other_origin", "The stream is for our own pages.")
        stream = await self._join(scope)
        is_whole = False
        try:
            keep_open(scope, stream.end)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            is_whole = await self._pump(stream, receive, send)
        finally:
            self.hub.leave(stream)
            if not is_whole:
                cut_off(scope)  # do not wait for a slow reader

    async def _join(self, scope: Message) -> Stream:
        """Raises Unknown (401) without a living session, Unavailable (503) if there is no room, or no news."""
        hub, after = self.hub, _after(scope)
        for _ in range(3):  # repeats if the roles change at this moment
            _refuse_without_room(hub.is_full)
            try:
                found = await hub.in_thread(reader_of, scope["headers"])
            except Exception as error:
                refusal = unavailable(error)
                if refusal is None:
                    raise
                log.error("%s: %s", refusal.code, error)
                raise _unavailable(refusal.code, refusal.message) from None
            if found is None:
                raise Unknown("not_authenticated", "Sign in again: the stream is for people who are signed in.")
            _refuse_without_room(hub.is_full or hub.is_full_for(found[0].user_id))
            stream = await hub.join(*found, after)
            if stream is not None:
                return stream
        raise _unavailable("roles_change", "Your roles are changing at this moment. Come back soon.")

    async def _pump(self, stream: Stream, receive: Receive, send: Send) -> bool:
        """What waits, as it comes, until the stream or the connection ends, whichever is first. Whether all of it was taken."""
        sending, leaving, ending = (
            asyncio.create_task(one) for one in (self._send(stream, send), _until_gone(receive), stream.ended())
        )
        try:
            await asyncio.wait({sending, leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                await asyncio.wait({sending}, timeout=LAST_WORD_S)
            return sending.done()
        finally:
            for task in (sending, leaving, ending):
                task.cancel()
            await asyncio.gather(sending, leaving, ending, return_exceptions=True)

    async def _send(self, stream: Stream, send: Send) -> None:
        while (chunk := await stream.next(BEAT_S)) is not None:
            if not chunk and self.hub.is_fresh:
                chunk = frames.beat(self.hub.seq)
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refuse_without_room(is_full: bool) -> None:
    if is_full:
        raise _unavailable("too_many_streams", "Too many pages are open here. This one asks for news by itself.")


def _unavailable(code: str, message: str) -> Unavailable:
    return Unavailable(code, message, retry_after_s=_AGAIN_S)


def _after(scope: Message) -> int | None:
    """The last event's number that the browser knows, or None."""
    asked = parse_qs(scope["query_string"].decode("latin-1")).get("after", [""])[-1]
    numbers = [asked, header(scope, b"last-event-id").decode("latin-1")]
    known = [int(text) for text in numbers if text.isascii() and text.isdigit() and 0 < len(text) < 19]
    return max(known, default=None)
