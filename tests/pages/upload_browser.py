"""The upload page in a real Chromium, against real processes: a web process, a worker, and what the browser's person does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client
from playwright.sync_api import Page, sync_playwright

from accounts.models import User
from tests.browser_rig import drop
from tests.upload_rig import Installation

#: Waiting for words on a busy machine.
PATIENCE_MS = 60_000
PROGRAM = "/usr/bin/chromium"


def database_url() -> str:
    found = connection.settings_dict
    return f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}/{found['NAME']}"


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Playwright keeps a loop in this thread, which Django takes for asynchronous code: it is told otherwise meanwhile."""
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            connections.close_all()  # those of this loop, which nobody else would close
            browser.close()


class Person:
    """Somebody with the upload page open."""

    def __init__(self, browser: Any, installation: Installation, user: User) -> None:
        client = Client()
        client.force_login(user)
        self.url = installation.url
        self.context = browser.new_context(reduced_motion="reduce")
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": self.url}])
        self.page: Page = self.context.new_page()
        #: What broke in the page: refused scripts, exceptions. Answers that a test provokes are no such thing.
        self.broken: list[str] = []
        self.page.on("pageerror", lambda error: self.broken.append(str(error)))
        self.page.on("console", lambda said: self._note(said))

    def _note(self, said: Any) -> None:
        if said.type == "error" and "Failed to load resource" not in said.text:
            self.broken.append(said.text)

    def open(self, path: str = "/models/sentiment/upload/") -> None:
        self.page.goto(self.url + path)
        self.says("#checked", ".")

    def choose(self, folder: Path) -> None:
        self.page.set_input_files("#choose-folder", folder)

    def drop(self, *paths: Path) -> None:
        drop(self.page, "#drop", *paths)

    def says(self, selector: str, words: str) -> str:
        """The text of the element, once it has these words."""
        found = self.page.locator(selector).filter(has_text=re.compile(re.escape(words)))
        try:
            found.wait_for(state="attached")
        except Exception:
            seen = self.page.locator("main").inner_text()[-3000:]
            raise AssertionError(f"{selector} never said {words!r}: {seen}; {self.broken}") from None
        return str(found.inner_text())

    def send(self) -> None:
        self.page.locator("#send:enabled").wait_for()
        self.page.click("#send")

    def seal(self) -> str:
        """The digest that the page shows, after it was sealed."""
        self.says("#sending-words", "Everything is there and verified")
        told = self.page.locator("#seal-part [data-digest]").inner_text()
        self.page.click("#seal")
        self.page.locator("#sealed-part").wait_for()
        assert self.page.locator("#sealed-part [data-digest]").inner_text() == told
        return str(told)
