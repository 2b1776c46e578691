"""Whom the doors in front of Django take for somebody: those whom the API has let in, or who at least show a session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.actions import issue_token
from accounts.core.access import Actor
from accounts.core.addresses import API
from sluicegate.front.rate_limits import RateLimits
from sluicegate.live.readers import reader_of
from tests.support.worlds.factories import make_user


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("path", "is_known"), [("models", True), ("schema", False), ("x", False)])
def test_the_api_tells_whom_it_let_in(path: str, is_known: bool) -> None:
    user = make_user("ada")
    token = issue_token(user=user, name="ci", actor=Actor.system("test"))
    app = RateLimits(get_asgi_application(), 100)
    sent: list[Any] = []

    async def ask() -> None:
        bodies = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Any:
            for body in bodies:
                return body
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {token}".encode()), (b"host", b"testserver")]
        scope = {"type": "http", "method": "GET", "path": f"{API}/{path}", "query_string": b"", "headers": headers}
        await app(scope | {"client": ("10.0.0.9", 1)}, receive, send)

    asyncio.run(ask())
    assert bool(app._known) is is_known, sent[0]["status"]


@pytest.mark.django_db
def test_who_shows_no_session_costs_the_stream_no_query() -> None:
    with CaptureQueriesContext(connection) as seen:
        assert reader_of([(b"cookie", b"theme=dark; sessionid="), (b"host", b"testserver")]) is None
        assert reader_of([]) is None
    assert not seen.captured_queries
    with CaptureQueriesContext(connection) as seen:
        assert reader_of([(b"cookie", b"sessionid=made-up")]) is None
    assert seen.captured_queries
