"""One open stream: what waits to be sent to one browser, bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from audit.core.audience import Audience
from sluicegate.live.frames import Why, bye
from sluicegate.live.readers import Reader

#: A browser that is so many messages behind comes back with its last number instead, and gets what it missed from the log.
MOST_WAITING: Final = 256


class Stream:
    """Filled by the hub, emptied by the middleware, in one event loop."""

    def __init__(self, reader: Reader, audience: Audience) -> None:
        self.reader, self.audience = reader, audience
        self.is_caught_up = self.is_ended = False
        self._waiting: deque[bytes] = deque()
        self._wake, self._end = asyncio.Event(), asyncio.Event()

    def put(self, frame: bytes) -> None:
        """To be sent; a stream with too much waiting ends at once, without a word, and nothing of it is sent."""
        if self.is_ended:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.clear()
            self.end()
            return
        self._waiting.append(frame)
        self._wake.set()

    def end(self, why: Why | None = None) -> None:
        """After what waits, nothing more; `why` is told last, where somebody is shut out, and what waits is not."""
        if why is not None and not self.is_ended:
            self._waiting.clear()
            self._waiting.append(bye(why))
        self.is_ended = True
        self._wake.set()
        self._end.set()

    async def ended(self) -> None:
        """Until it has ended."""
        await self._end.wait()

    async def next(self, within_s: float) -> bytes | None:
        """All that waits, as one chunk; empty when nothing came in that time; None at the end."""
        if not self._waiting and not self.is_ended:
            with suppress(TimeoutError):  # something may have come in that moment
                async with asyncio.timeout(within_s):  # `wait_for` loses a cancellation that comes with news
                    await self._wake.wait()
        chunk = b"".join(self._waiting)
        self._waiting.clear()
        self._wake.clear()
        return chunk or (None if self.is_ended else b"")
