"""A real browser for the pages that need one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import Browser, chromium


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser, live_server: Any) -> Iterator[Browser]:
    """With every address answered again, and on no page at the end: nothing may be polled while the database is emptied."""
    one_browser.block()
    yield one_browser
    one_browser.send("Page.navigate", url="about:blank")
    one_browser.wait_for("location.href === 'about:blank'")
