"""Takes pictures for `python -m tests.pages.pictures`; otherwise one, to see that the command works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import Page

from tests.factories import make_user
from tests.pages.pictures import DOCS, FOLDER, ONLY, contact_sheet
from tests.pages.test_every_page import World, addresses, made

pytestmark = [
    pytest.mark.real("chromium"),
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(3600),
]
LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
#: What README and docs show: the file's name, and the page.
OF_DOCS = {"overview": "overview", "rollout": "rollout", "release": "release", "styleguide": "styleguide"}


def take(page: Page, address: str, path: Path, width: int, scheme: Any) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    if page.url.removeprefix(str(page.evaluate("location.origin"))) != address:
        page.goto(address)
    page.screenshot(path=path, full_page=True)


def file_name(address: str, world: str, width: int, scheme: str) -> str:
    return f"{address.strip('/').replace('/', '_') or 'overview'}@{world}-{width}-{scheme}.png"


def asked_for(world: World | None) -> Iterator[str]:
    only = os.environ.get(ONLY, "")
    yield from (address for address in addresses(world) if only in address)


@pytest.mark.parametrize("is_full", [False, True], ids=["empty", "full"])
def every_page_is_pictured(page_of: Callable[..., Page], is_full: bool) -> None:
    folder = os.environ[FOLDER]
    world = made() if is_full else None
    page = page_of(make_user("root", is_admin=True), expects=("",))
    for address in asked_for(world):
        page.goto(address)
        for width, scheme in LOOKS:
            take(
                page,
                address,
                Path(folder) / file_name(address, "full" if is_full else "empty", width, scheme),
                width,
                scheme,
            )


if os.environ.get(FOLDER) and not os.environ.get(DOCS):
    test_every_page_is_pictured = every_page_is_pictured


def test_the_pictures_of_the_docs(page_of: Callable[..., Page], tmp_path: Path) -> None:
    """One of them when nobody asked: a picture of a page, and a sheet that shows it."""
    is_asked = bool(os.environ.get(DOCS))
    folder = Path(os.environ[FOLDER]) if is_asked else tmp_path
    known = made().arguments()
    page = page_of(make_user("root", is_admin=True))
    for name, page_name in OF_DOCS.items() if is_asked else [("rollout", "rollout")]:
        address = reverse(page_name, kwargs=known.get(page_name))
        page.goto(address)
        take(page, address, folder / f"page-{name}.png", 1280, "light")
        assert (folder / f"page-{name}.png").stat().st_size > 10_000, "a blank page"
    if not is_asked:
        assert "page-rollout.png" in contact_sheet(folder).read_text()
