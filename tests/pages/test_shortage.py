"""A web process without files, memory or threads: pages, API and uploads answer 503 and when to come back."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.urls import reverse

from ledger.adapters.shortage import shortage
from registry.api import parts
from sluicegate.front.uploads import UploadMiddleware
from tests.pages.clients import signed_in
from tests.support.worlds.factories import make_user
from web.pages import session

pytestmark = pytest.mark.django_db

SHORT = [
    lambda: OSError(errno.EMFILE, "Too many open files"),
    lambda: OSError(errno.ENFILE, "Too many open files in system"),
    lambda: OSError(errno.ENOMEM, "Cannot allocate memory"),
    lambda: MemoryError(),
    lambda: RuntimeError("can't start new thread"),
]


def raising(error: Callable[[], Exception]) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error()

    return refuse


@pytest.mark.parametrize("error", SHORT)
@pytest.mark.parametrize("address", ["fleet", "/api/v1/teams"])
def test_a_page_and_the_api_say_come_back_soon(
    error: Callable[[], Exception], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = signed_in(make_user("ana", team="search"))
    monkeypatch.setattr("accounts.actions.actor_for", raising(error))
    answer = client.get(address if address.startswith("/") else reverse(address))
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert "at this moment" in answer.content.decode()


@pytest.mark.parametrize("error", SHORT)
def test_a_shortage_outside_of_views_is_no_fault(
    error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = signed_in(make_user("ana", team="search"))
    client.raise_request_exception = False
    monkeypatch.setattr(SessionStore, "load", raising(error))
    answer = client.get(reverse("fleet"))
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")


def test_without_a_file_for_the_template_there_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    client = signed_in(make_user("ana", team="search"))
    monkeypatch.setattr("accounts.actions.actor_for", raising(SHORT[0]))
    monkeypatch.setattr(session, "render_to_string", raising(SHORT[0]))
    answer = client.get(reverse("fleet"))
    assert (answer.status_code, answer["Retry-After"], answer["Content-Type"]) == (503, "5", "text/plain")


@pytest.mark.parametrize("error", SHORT)
def test_a_part_of_an_upload_may_be_sent_again(error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ticket_of", raising(error))
    monkeypatch.setattr(parts, "PATH", AnyPath())
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def app(*_: Any) -> None:
        raise AssertionError

    scope = {"type": "http", "method": "PUT", "path": "/", "query_string": b"", "headers": []}
    asyncio.run(UploadMiddleware(app)(scope, receive, send))
    assert sent[0]["status"] == 503 and (b"retry-after", b"5") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["code"] == "machine_short"


class AnyPath:
    def fullmatch(self, path: str) -> dict[str, str]:
        return {"upload": "1", "number": "1"}


def test_other_errors_are_no_shortage() -> None:
    assert shortage(OSError(errno.EACCES, "Permission denied")) is None
    assert shortage(RuntimeError("another")) is None
    behind = ValueError("could not read")
    behind.__cause__ = OSError(errno.EMFILE, "Too many open files")
    told = shortage(behind)
    assert told is not None and told.code == "machine_short"
