"""ASGI middleware that counts requests to the pages and the API, for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import Histogram

from accounts.core.addresses import API
from sluicegate.front.messages import App, Message, Receive, Send

HTTP_SECONDS = Histogram(
    "sluicegate_http_request_duration_seconds",
    "Time until the answer's head was there, by part (api or pages), method and status.",
    ("part", "method", "status"),
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0),
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """An ASGI application: hands every request to `app`, and times it."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                part = "api" if scope["path"].startswith(API) else "pages"
                method = scope["method"] if scope["method"] in _METHODS else "other"
                HTTP_SECONDS.labels(part, method, str(message["status"])).observe(time.monotonic() - began)
            await send(message)

        await self.app(scope, receive, timed)
