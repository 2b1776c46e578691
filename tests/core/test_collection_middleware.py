"""The web process leaves what lives for good out of its collections, once."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from sluicegate.front.collection import CollectionMiddleware


def test_after_so_many_requests_all_that_lives_is_frozen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("collected"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        done.append(scope["type"])

    warm: Any = CollectionMiddleware(app, warm_after=2)

    async def asked() -> None:
        for kind in ("lifespan", "http", "http", "http"):
            await warm({"type": kind}, None, None)

    asyncio.run(asked())
    assert done == ["lifespan", "http", "http", "collected", "frozen", "http"]
