"""Readers of event streams: raw ASGI requests to the middleware, in an event loop of their own thread."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.test import Client

from accounts.models import User
from sluicegate.front.streams import StreamMiddleware
from sluicegate.live.hub import Hub

#: Generous: other work shares the machine.
WITHIN_S = 60.0


def cookie_of(user: User | None) -> bytes:
    """The Cookie header of a browser in which the user has just signed in."""
    if user is None:
        return b""
    client = Client()
    client.force_login(user)
    return f"sessionid={client.cookies['sessionid'].value}".encode()


def until(is_true: Callable[[], Any], what: str = "") -> Any:
    """The first true answer."""
    latest = time.monotonic() + WITHIN_S
    while not (found := is_true()):
        assert time.monotonic() < latest, what or "it did not come"
        time.sleep(0.01)
    return found


class Reading:
    """One request for the stream. `stalls`: nothing is taken after the head."""

    def __init__(
        self, cookie: bytes, query: str = "", headers: dict[str, str] | None = None, *, stalls: bool = False
    ) -> None:
        self.status, self.body, self.is_over, self.was_cut = 0, b"", False, False
        self.headers: dict[str, str] = {}
        self._stalls = stalls
        self._gone = asyncio.Event()
        given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": "/_stream", "query_string": query.encode(),
            "headers": [*given, *([(b"cookie", cookie)] if cookie else [])], "state": {"abort_connection": self._cut},
        }  # fmt: skip

    def _cut(self) -> None:
        self.was_cut = True

    async def run(self, app: Any) -> None:
        try:
            await app(self.scope, self._receive, self._send)
        finally:
            self.is_over = True

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif self._stalls and self.status == 200:
            await asyncio.Event().wait()
        else:
            self.body += message["body"]

    def leave(self) -> None:
        """In the event loop: the browser goes."""
        self._gone.set()

    @property
    def messages(self) -> list[dict[str, str]]:
        """What came, as a browser reads it: event, data, id."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
            found.append({"event": "message", **fields})
        return found

    @property
    def topics(self) -> list[str]:
        """Every topic of every hint, in order."""
        return [topic for one in self.messages if one["event"] == "message" for topic in json.loads(one["data"])]

    def events(self, name: str) -> list[dict[str, str]]:
        return [one for one in self.messages if one["event"] == name]


class Rig:
    """The middleware in an event loop that runs in a thread; the test itself writes to the database meanwhile."""

    def __init__(self, most: int = 1000) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="rig", daemon=True)
        self._thread.start()
        self.app = StreamMiddleware(self._page, lambda: Hub(most))
        self.seen: list[dict[str, Any]] = []

    async def _page(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope)

    @property
    def hub(self) -> Hub:
        return self.app.hub

    def open(self, cookie: bytes, after: int | str | None = None, *, stalls: bool = False, **headers: str) -> Reading:
        """A stream that has answered; its first message may still be on its way."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        reading = Reading(cookie, "" if after is None else f"after={after}", named, stalls=stalls)
        answered = asyncio.run_coroutine_threadsafe(reading.run(self.app), self.loop)
        until(lambda: reading.status or answered.done(), "no answer")
        if answered.done():
            answered.result()  # raises what the middleware raised
        return reading

    def open_live(self, cookie: bytes, after: int | None = None) -> Reading:
        """A stream that has had its first message."""
        reading = self.open(cookie, after)
        until(lambda: reading.messages, "no first message")
        return reading

    def leave(self, reading: Reading) -> None:
        self.loop.call_soon_threadsafe(reading.leave)
        until(lambda: reading.is_over, "the request goes on")

    def call(self, function: Callable[[], Any]) -> Any:
        """Within the event loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WITHIN_S)

    def stop(self) -> None:
        watcher = self.hub._watcher
        self.call(self.hub.stop)
        if watcher is not None:
            watcher.join(WITHIN_S)  # it looks at tables that are emptied after the test
        self.hub._threads.shutdown(wait=True)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WITHIN_S)
        self.loop.close()


@contextmanager
def streaming(most: int = 1000) -> Iterator[Rig]:
    rig = Rig(most)
    try:
        yield rig
    finally:
        rig.stop()
