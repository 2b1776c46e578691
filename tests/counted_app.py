"""The web application, with every byte of every request's body counted into the file that COUNT_FILE names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sluicegate.asgi import application as counted

_FILE = Path(os.environ["COUNT_FILE"])


def _note(method: str, path: str, count: int) -> None:
    with _FILE.open("a") as file:
        file.write(f"{method} {path} {count}\n")


async def application(scope: Any, receive: Any, send: Any) -> None:
    """One line for each request: method, path, bytes of its body that this process was given."""
    count = 0

    async def counting() -> Any:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        return message

    try:
        await counted(scope, counting, send)
    finally:
        if scope["type"] == "http":
            _note(scope["method"], scope["path"], count)
