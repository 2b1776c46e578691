"""Freezes long-lived objects: a full garbage collection visits all objects, in the middle of a request."""

from __future__ import annotations

import gc

from sluicegate.front.messages import App, Message, Receive, Send

#: By then a process has imported, compiled and kept what requests need: some hundred thousand objects, a tenth of a second.
WARM_AFTER = 300


class CollectionMiddleware:
    """Freezes all surviving objects once, after a number of requests."""

    def __init__(self, app: App, warm_after: int = WARM_AFTER) -> None:
        self._app, self._left = app, warm_after

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        if scope["type"] != "http" or self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            gc.collect()
            gc.freeze()
