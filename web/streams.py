"""Answers of many lines, sent as they are made, without holding all of them and without holding up the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from itertools import islice

from asgiref.sync import sync_to_async

#: Lines that are made, and sent, at once.
AT_ONCE = 200


async def in_threads(lines: Generator[bytes]) -> AsyncIterator[bytes]:
    """What the generator makes, in the way that an ASGI server consumes; it is closed also where the caller leaves."""

    def some() -> list[bytes]:
        return list(islice(lines, AT_ONCE))

    try:
        while found := await sync_to_async(some)():
            yield b"".join(found)
    finally:
        await sync_to_async(lines.close)()
