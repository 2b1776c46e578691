"""The palette and the keys that lead to places, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from accounts.core.access import Role
from tests.support.rigs.browser_rig import WITHIN_MS
from tests.support.rigs.web_rig import WebServer
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=WITHIN_MS)


def test_the_palette_leads_by_keys_alone(page_of: Callable[..., Page], web: WebServer) -> None:
    rollout, _ = with_stable()
    address = f"/models/{rollout.model.slug}/r/{rollout.candidate.number}/"
    page = page_of(make_user(team="search", role=Role.RELEASE_MANAGER))
    palette, field = page.locator("#palette"), page.locator("#palette-text")
    page.goto("/rollouts/")
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type(f"{rollout.model.slug}/r{rollout.candidate.number}")  # its g and m lead nowhere
    expect(page.locator("#palette-hits [aria-selected=true]")).to_have_attribute("data-href", address)
    expect(field).to_have_attribute("aria-activedescendant", "hit-1")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{address}")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(web.url + "/")
    page.keyboard.press("/")
    expect(palette).to_be_visible()
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()
    expect(field).not_to_be_focused()  # which it is for a moment after it is hidden, and keys are its own until then
    page.keyboard.press("?")
    page.wait_for_url("**/search/#keys")


def test_single_keys_can_be_turned_off(page_of: Callable[..., Page]) -> None:
    page = page_of(make_user(team="search", role=Role.RELEASE_MANAGER))
    page.goto("/rollouts/")
    page.locator("details.menu summary").click()
    page.locator("#looks-keys").select_option("off")
    page.get_by_role("button", name="Choose").click()
    expect(page.locator(".messages")).to_contain_text("as you chose")
    page.keyboard.press("/")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.keyboard.press("Control+k")  # which no switch turns off, and which comes after the others
    expect(page.locator("#palette-text")).to_be_focused()
    assert page.locator("#palette-text").input_value() == "" and page.url.endswith("/rollouts/")
