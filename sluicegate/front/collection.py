"""A full collection of garbage goes through all that lives, in the middle of somebody's request: what lives for good is left out of it."""

from __future__ import annotations

import gc

from sluicegate.front.messages import App, Message, Receive, Send

#: By then a process has imported, compiled and kept what requests need: some hundred thousand objects, a tenth of a second.
WARM_AFTER = 300


class CollectionMiddleware:
    """Once, after so many requests, everything that has survived is frozen."""

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
