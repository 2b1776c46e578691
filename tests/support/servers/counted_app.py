"""The web application, with every request's status and the bytes of its body written into the file that COUNT_FILE names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sluicegate.asgi import application as counted

_FILE = Path(os.environ["COUNT_FILE"])


def _note(method: str, path: str, count: int, status: int) -> None:
    with _FILE.open("a") as file:
        file.write(f"{method} {quote(path)} {count} {status}\n")


async def application(scope: Any, receive: Any, send: Any) -> None:
    """One line for each request: method, path, bytes of its body that this process was given, status (0: none)."""
    count = status = 0

    async def counting() -> Any:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        return message

    async def noting(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        await send(message)

    try:
        await counted(scope, counting, noting)
    finally:
        if scope["type"] == "http":
            _note(scope["method"], scope["path"], count, status)
