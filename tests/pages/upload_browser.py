"""The upload page in a real Chromium, against real processes: a web process, a worker, and what the browser's person does."""

from __future__ import annotations

import re
from pathlib import Path

from django.db import connection
from playwright.sync_api import Browser

from accounts.models import User
from tests.support.rigs.browser_rig import drop, new_context, sign_in
from tests.support.rigs.upload_rig import Installation


def database_url() -> str:
    found = connection.settings_dict
    return f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}/{found['NAME']}"


class Person:
    """Somebody with the upload page open."""

    def __init__(self, browser: Browser, installation: Installation, user: User) -> None:
        self.url = installation.url
        #: What broke in the page: refused scripts, exceptions. Answers that a test provokes are no such thing.
        self.context, self.broken = new_context(browser, self.url, expects=("Failed to load resource",))
        sign_in(self.context, self.url, user)
        self.page = self.context.new_page()

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
