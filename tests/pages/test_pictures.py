"""Takes pictures for `python -m tests.pages.pictures`; otherwise one, to see that the command works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.urls import reverse
from playwright.sync_api import Page

from accounts.models import User
from tests.pages.gallery.faults import steps
from tests.pages.gallery.faults import take as lead
from tests.pages.gallery.world import Gallery, everybody_is_heard, gallery
from tests.pages.pictures import DOCS, FOLDER, ONLY, SCHEME, WIDTH, WORLD, WORLDS, contact_sheet, packed
from tests.pages.test_every_page import NO_PAGES, addresses, made
from tests.support.worlds.factories import make_user
from tests.support.worlds.page_world import addresses as addresses_of_many
from tests.support.worlds.page_world import page_world
from web.pages import rollouts as rollouts_page

pytestmark = [
    pytest.mark.real("chromium"),
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(3600),
]
LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
#: What README and docs show: (the file's name, the page, light or dark, how high in px; None: as high as the page).
OF_DOCS = [
    ("rollout", "rollout", "light", 1010),
    ("rollout-dark", "rollout", "dark", 1010),
    ("overview", "overview", "light", 1180),
    ("taken-back", "post_mortem", "light", 1040),
    ("compare", "release_diff", "light", 1120),
]
MANY = 40


def settle(page: Page) -> None:
    """What a picture would show half done: something under the pointer, an animation."""
    page.emulate_media(reduced_motion="reduce")
    page.mouse.move(0, 0)


def shoot(page: Page, folder: Path, name: str, world: str) -> None:
    """The page as it lies open, at every width and in both colours that were asked for."""
    settle(page)
    for width, scheme in LOOKS:
        if os.environ.get(WIDTH, "") in {"", str(width)} and os.environ.get(SCHEME, "") in {"", scheme}:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.screenshot(path=folder / f"{name}@{world}-{width}-{scheme}.png", full_page=True)


def file_name(address: str) -> str:
    return address.partition("?")[0].strip("/").replace("/", "_") or "overview"


def is_asked(text: str) -> bool:
    only = os.environ.get(ONLY, "")
    return not only or any(part in text for part in only.split(","))


def world_of(name: str) -> tuple[User, list[str], Gallery | None]:
    """(who looks, the pages' addresses, what faults need)."""
    if name == "many":
        with transaction.atomic():
            many = page_world(MANY)
        return many.admin, [address for page, address in addresses_of_many(many) if page not in NO_PAGES], None
    if name in {"empty", "one"}:
        world = made() if name == "one" else None
        return make_user("viewer", is_admin=True), list(addresses(world)), None
    whole = gallery()
    return whole.viewer, list(addresses(whole)) if name == "full" else [], whole  # type: ignore[arg-type]


@pytest.mark.parametrize("world", WORLDS)
def every_page_is_pictured(page_of: Callable[..., Page], world: str) -> None:
    if os.environ.get(WORLD, "") not in {"", world}:
        pytest.skip(f"{WORLD} asks for another world")
    folder = Path(os.environ[FOLDER])
    viewer, pages, whole = world_of(world)
    page = page_of(viewer, expects=("",))
    for address in pages:
        if is_asked(address):
            if whole is not None:
                everybody_is_heard()
            page.goto(address)
            shoot(page, folder, file_name(address), world)
    if world == "error" and whole is not None:
        picture_faults(page, whole, folder)
        shoot_refusals(page_of, whole, folder)


def picture_faults(page: Page, whole: Gallery, folder: Path) -> None:
    for step in steps(whole):
        if is_asked(step[0]) or is_asked(step[1]):
            everybody_is_heard()
            lead(page, step)
            shoot(page, folder, step[0], "error")


def shoot_refusals(page_of: Callable[..., Page], whole: Gallery, folder: Path) -> None:
    """What people see who are not signed in, or may not; and a page whose server is gone."""
    for name, user, address in (
        ("sign-in-with-issuer", None, reverse("sign_in")),
        ("forbidden", whole.person, reverse("people")),
        ("overview-of-a-manager", whole.person, reverse("overview")),
        ("approvals-of-a-manager", whole.person, reverse("approvals")),
        ("rollout-waiting-for-a-manager", whole.person, reverse("rollout", args=[whole.waiting.pk])),
    ):
        if is_asked(name):
            page = page_of(user, expects=("",))
            page.goto(address)
            shoot(page, folder, name, "error")


if os.environ.get(FOLDER) and not os.environ.get(DOCS):
    test_every_page_is_pictured = every_page_is_pictured
IS_FOR_SHEETS = bool(os.environ.get(FOLDER)) and not os.environ.get(DOCS)


def of_docs(known: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, str, int]]:
    """(file's name, address, colours, height in px) of the pictures that README and docs show."""
    queries = {"release_diff": "?against=r2"}
    for name, page, scheme, height in OF_DOCS:
        kwargs = known.get(page, known["release"] if page.startswith("release") else None)
        yield name, reverse(page, kwargs=kwargs) + queries.get(page, ""), scheme, height


@pytest.mark.skipif(IS_FOR_SHEETS, reason="other pictures were asked for")
def test_the_pictures_of_the_docs(
    page_of: Callable[..., Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them when nobody asked: a picture of a page, and a sheet that shows it."""
    if not os.environ.get(DOCS):
        world = made()
        page = page_of(make_user("root", is_admin=True))
        page.goto(reverse("rollout", args=[world.rollout.pk]))
        shoot(page, tmp_path, "rollout", "one")
        (light, dark) = (tmp_path / f"rollout@one-1280-{scheme}.png" for scheme in ("light", "dark"))
        assert light.stat().st_size > 10_000, "a blank page"
        assert light.read_bytes() != dark.read_bytes() and len(packed(light.read_bytes())) <= light.stat().st_size
        assert light.name in contact_sheet(tmp_path).read_text()
        return
    monkeypatch.setattr(rollouts_page, "MISSED", timedelta(days=1))  # the gallery has no engine
    whole = gallery()
    page = page_of(whole.viewer, device_scale_factor=1.5)
    for name, address, scheme, height in of_docs(whole.arguments()):
        page.set_viewport_size({"width": 1160, "height": height})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        everybody_is_heard()
        page.goto(address)
        if page.locator("[data-live]").count():
            page.wait_for_selector("body[data-live-state=live]")
        settle(page)
        (Path(os.environ[FOLDER]) / f"{name}.png").write_bytes(packed(page.screenshot()))
