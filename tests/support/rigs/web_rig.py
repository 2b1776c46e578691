"""The web process's application on a real uvicorn in a thread of this process, on the test's own database."""

from __future__ import annotations

import asyncio
import mimetypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from django.contrib.staticfiles import finders
from django.core.asgi import get_asgi_application

from sluicegate.front.bodies import BodyMiddleware
from sluicegate.front.streams import StreamMiddleware
from sluicegate.front.uploads import UploadMiddleware
from sluicegate.front.waits import WaitMiddleware
from sluicegate.web_server import BoundedHttp
from tests.support.rigs.gateway_rig import free_port
from web.security_headers import CONTENT_SECURITY_POLICY

#: Seconds between two looks for a caller who waits; in production it is a second.
LOOKS_EVERY_S = 0.2


class WebServer:
    """Answers at `url`, pages, API and streams. `refused` has addresses that get 503 instead, as if nobody were there."""

    def __init__(self, *, has_stream: bool = True) -> None:
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        waits = WaitMiddleware(get_asgi_application(), pause=lambda: asyncio.sleep(LOOKS_EVERY_S))
        self.streams = StreamMiddleware(UploadMiddleware(waits))
        self.has_stream = has_stream
        self.asked: list[str] = []
        config = uvicorn.Config(
            self._application, host="127.0.0.1", port=self.port, http=BoundedHttp, loop="asyncio", interface="asgi3", lifespan="off",
            log_level="error", timeout_graceful_shutdown=10,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._body = BodyMiddleware(self.streams)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()), daemon=True)
        self._thread.start()
        until = time.monotonic() + 60
        while not self._server.started:
            assert time.monotonic() < until
            time.sleep(0.01)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        if scope["path"] == "/_stream" and not self.has_stream:
            await send({"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"1")]})
            await send({"type": "http.response.body", "body": b""})
            return
        if scope["path"].startswith("/static/"):
            await _send_file(scope["path"], send)
            return
        await self._body(scope, receive, send)

    def count(self, part: str) -> int:
        """How many requests came for addresses with this part."""
        return sum(part in path for path in self.asked)

    def stop(self) -> float:
        """How long it took, in seconds."""
        began = time.monotonic()
        hub = self.streams.hub
        before = hub._watcher
        self._server.should_exit = True
        self._thread.join(60)
        took_s = time.monotonic() - began
        hub._threads.shutdown(wait=True)
        for watcher in (before, hub._watcher):  # another, where a browser came back while the server was ending
            if watcher is not None:
                watcher.stop()
                watcher.join(60)
        return took_s


async def _send_file(path: str, send: Any) -> None:
    """One of our own files, plain; WhiteNoise, which leaves each open until it is collected, has tests of its own."""
    found = finders.find(path.removeprefix("/static/"))
    status, data = (200, Path(str(found)).read_bytes()) if found else (404, b"")
    kind = (mimetypes.guess_type(path)[0] or "text/plain").encode()
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(data)).encode()),
        (b"cache-control", b"max-age=600"),
    ]
    headers.append((b"content-security-policy", CONTENT_SECURITY_POLICY.encode()))  # a worker has its script's
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


@contextmanager
def serving(**options: Any) -> Iterator[WebServer]:
    server = WebServer(**options)
    try:
        yield server
    finally:
        server.stop()
