"""A real browser for what only a browser shows, by Playwright: pages as people meet them, with keys, a mouse and a lost connection."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.rigs import browser_rig
from tests.support.rigs.browser_rig import new_context, sign_in

if TYPE_CHECKING:  # Playwright may be absent, and Django is not set up yet
    from playwright.sync_api import Browser, BrowserContext, Page

    from tests.support.rigs.web_rig import WebServer


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One for the tests of a file. Not longer: while Playwright runs, no other event loop can in this thread."""
    from django.db import connections

    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = (
        "1"  # Playwright's loop is there, and never runs while a test asks the database
    )
    try:
        with browser_rig.chromium() as browser:
            yield browser
            connections.close_all()  # those of this loop, which nobody else would close
    finally:
        if before is None:
            del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
        else:
            os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


@pytest.fixture
def web(transactional_db: Any) -> Iterator[WebServer]:
    """The real web server, with streams, on this test's database."""
    from tests.support.rigs.web_rig import serving

    with serving() as server:
        yield server
    gc.collect()  # what requests left that were broken off, while nobody minds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever leaves a page breaks off its requests, and Django drops their threads with their database connections open."""
    for item in items:
        if "web" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning"))


@pytest.fixture
def context_of(chromium: Browser, web: WebServer) -> Iterator[Callable[..., BrowserContext]]:
    """`context_of(user)`: a browser profile of its own, signed in as the user (None: as nobody). What its pages complain of is an error.

    `expects`: parts of complaints that the test causes on purpose. Other options are Playwright's.
    """
    opened: list[tuple[BrowserContext, list[str]]] = []

    def make(user: Any = None, *, expects: tuple[str, ...] = (), **options: Any) -> BrowserContext:
        context, complaints = new_context(chromium, web.url, expects=expects, **options)
        opened.append((context, complaints))
        if user is not None:
            sign_in(context, web.url, user)
        return context

    yield make
    for context, _ in opened:
        context.close()
    assert [one for _, complaints in opened for one in complaints] == []


@pytest.fixture
def page_of(context_of: Callable[..., BrowserContext]) -> Callable[..., Page]:
    """`page_of(user)`: a page in such a profile."""

    def make(user: Any = None, **options: Any) -> Page:
        return context_of(user, **options).new_page()

    return make
