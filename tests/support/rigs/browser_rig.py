"""Chromium by Playwright: where the program is, how it is started, and what counts as a complaint of a page."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright

ROOT = Path(__file__).resolve().parents[3]
#: `.ci/packages` unpacks packages there for a user who may not install any.
OWN = ROOT / ".build" / "debian" / "root"
_OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
]  # fmt: skip
#: A cold start on a busy machine takes several seconds.
WITHIN_MS = int(os.environ.get("WITHIN_MS", 60_000))
#: Words that state that something is well. “Live” stands beside the navigation and states what the page does.
GOOD = re.compile(r"\b(healthy|reachable|1 of 1 answer)\b")
#: The text of a page without the choices of its filters.
TEXT = """() => {
  const main = document.querySelector("main").cloneNode(true);
  for (const one of main.querySelectorAll("select")) one.remove();
  return main.textContent;
}"""
#: Elements in the colour of success.
GREEN = """() => {
  const probe = document.createElement("i");
  probe.style.color = "var(--ok)";
  document.body.append(probe);
  const green = getComputedStyle(probe).color;
  probe.remove();
  return [...document.querySelectorAll("body *")]
    .filter((one) => one.checkVisibility() && (getComputedStyle(one).color === green || one.matches(".word.ok, .tile.ok")))
    .map((one) => one.outerHTML.slice(0, 120));
}"""


def program() -> Path | None:
    """The program itself: Debian's /usr/bin/chromium is a script that adds options of its own."""
    for folder in (OWN, Path("/")):
        if (found := folder / "usr/lib/chromium/chromium").is_file():
            return found
    named = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((Path(one) for one in named if one), None)


def is_here() -> bool:
    return find_spec("playwright") is not None and program() is not None


def launch(playwright: Playwright) -> Browser:
    path = program()
    env: dict[str, Any] = dict(os.environ)
    if path is not None and OWN in path.parents:
        libraries = [str(OWN / name / "x86_64-linux-gnu") for name in ("usr/lib", "lib")]
        env["LD_LIBRARY_PATH"] = ":".join(libraries)
    return playwright.chromium.launch(executable_path=path, args=_OPTIONS, env=env, timeout=WITHIN_MS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the length of a `with` block. No other event loop can run in this thread meanwhile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def drop(page: Page, zone: str, *paths: Path) -> None:
    """Drops files and folders on the element, as the mouse of a person does, with real entries and handles."""
    devtools = page.context.new_cdp_session(page)
    page.locator(zone).scroll_into_view_if_needed()
    box = page.locator(zone).bounding_box()
    assert box is not None
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        devtools.send("Input.dispatchDragEvent", {"type": kind, "x": box["x"] + 20, "y": box["y"] + 20, "data": data})
    devtools.detach()


def new_context(
    browser: Browser, url: str, *, expects: tuple[str, ...] = (), **options: Any
) -> tuple[BrowserContext, list[str]]:
    """(a profile of its own, the list that its pages' complaints go to: errors on the console, and what no script caught)."""
    context = browser.new_context(
        base_url=url,
        **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", "locale": "en-GB", **options},
        timezone_id="UTC",
    )
    context.set_default_timeout(WITHIN_MS)
    complaints: list[str] = []

    def note(text: str) -> None:
        if not any(part in text for part in expects):
            complaints.append(text)

    def listen(page: Page) -> None:
        def on_console(message: ConsoleMessage) -> None:
            if message.type == "error":
                note(f"{page.url}: {message.text} ({message.location.get('url', '')})")

        page.on("console", on_console)
        page.on("pageerror", lambda error: note(f"{page.url}: {error}"))

    context.on("page", listen)
    return context, complaints


def sign_in(context: BrowserContext, url: str, user: Any) -> None:
    """The cookie of a session that the server knows."""
    from django.test import Client

    client = Client()
    client.force_login(user)
    context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": url}])
