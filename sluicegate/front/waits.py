"""ASGI middleware that lets callers wait for the end of a gate run or rollout, at no thread and no database connection of their own.

Django's part (`accounts.api.waiting`) answers at once, 202 while there is nothing to tell. Here the caller is kept, and the same
request asked anew now and then, until the answer is another one or the time is over: whoever loses a right while waiting loses the
wait, too.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qs

from accounts.api.waiting import PENDING, read_timeout
from accounts.core.addresses import API
from ledger.core.errors import Invalid
from sluicegate.front.messages import App, Message, Receive, Send, credential

PATH: Final = re.compile(API + r"/(?:gate-runs|rollouts)/\d+/wait")
#: Who waits asks anew after this long; a rollout ticks once a second.
PAUSE_S: Final = 1.0
#: Callers kept at once, in this process. Any more get the answer of the moment, and ask again by themselves.
MOST_KEPT: Final = 200
#: Of those, with the same token or session.
MOST_KEPT_OF_ONE: Final = 20


class WaitMiddleware:
    """An ASGI application: keeps those who wait, and hands every request to `app`. `pause` is what lies between two looks."""

    def __init__(self, app: App, pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(PAUSE_S)) -> None:
        self.app = app
        self._pause = pause
        self._kept: Counter[str] = Counter()  # by credential; those of nobody are not here

    @property
    def kept(self) -> int:
        """How many wait now."""
        return self._kept.total()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        waits_s = _waits_s(scope)
        caller = credential(scope) if waits_s else ""
        if not waits_s or self.kept >= MOST_KEPT or self._kept[caller] >= MOST_KEPT_OF_ONE:
            await self.app(scope, receive, send)
            return
        self._kept[caller] += 1
        try:
            await self._keep(scope, receive, send, waits_s)
        finally:
            self._kept[caller] -= 1
            if not self._kept[caller]:
                del self._kept[caller]

    async def _keep(self, scope: Message, receive: Receive, send: Send, waits_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + waits_s
        left = asyncio.ensure_future(_left(receive))
        try:
            while True:
                status, answer = await self._ask(scope)
                if status != PENDING or loop.time() >= until:
                    break
                pause = asyncio.ensure_future(self._pause())
                await asyncio.wait({pause, left}, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                if left.done():
                    return
        finally:
            left.cancel()
        for message in answer:
            await send(message)

    async def _ask(self, scope: Message) -> tuple[int, list[Message]]:
        """What `app` answers now: the status, and the messages to send."""
        answer: list[Message] = []
        bodies = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Message:
            for body in bodies:
                return body
            await asyncio.Event().wait()  # the caller is still there; its leaving is watched elsewhere
            raise AssertionError

        async def keep(message: Message) -> None:
            answer.append(message)

        await self.app({**scope, "state": dict(scope.get("state", {}))}, receive, keep)
        return (int(answer[0]["status"]) if answer else 0), answer


def _waits_s(scope: Message) -> float:
    """Time to keep this request; 0 if it is answered at once, or if Django must report its mistake."""
    if scope["type"] != "http" or scope["method"] != "GET" or not PATH.fullmatch(scope["path"]):
        return 0.0
    given = parse_qs(scope["query_string"].decode("latin-1")).get("timeout_s")
    try:
        return read_timeout(given[-1] if given else None)
    except Invalid:
        return 0.0


async def _left(receive: Receive) -> None:
    """Returns once the caller is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
