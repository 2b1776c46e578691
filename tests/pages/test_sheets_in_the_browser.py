"""Sheets, forms and notices as a keyboard and a screen reader meet them, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.sessions.models import Session
from django.urls import reverse
from playwright.sync_api import Page, expect

from accounts.actions import actor_for
from accounts.core.access import Role
from accounts.models import User
from registry.models import ServedModel
from rollouts import actions
from tests.support.rigs.browser_rig import WITHIN_MS, sign_in
from tests.support.rigs.web_rig import WebServer
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import awaiting, with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=WITHIN_MS)
Pages = Callable[..., Page]
LIVE = re.compile(r"/_[a-z_]+/")
FOCUS_IS_IN = "sheet => sheet.contains(document.activeElement)"


def manager(name: str = "") -> User:
    return make_user(name, team="search", role=Role.RELEASE_MANAGER)


def test_focus_goes_into_a_sheet_stays_there_and_comes_back(page_of: Pages) -> None:
    rollout, _, approver = awaiting()
    page = page_of(User.objects.get(pk=approver.user_id))
    page.goto(reverse("approvals"))
    opener = page.locator(f"[popovertarget=approve-{rollout.pk}]").first
    sheet = page.locator(f"#approve-{rollout.pk}")
    opener.focus()
    page.keyboard.press("Enter")
    expect(sheet).to_be_visible()
    expect(page.locator(f"#why-approve-{rollout.pk}")).to_be_focused()
    for _ in range(6):
        page.keyboard.press("Tab")
        assert sheet.evaluate(f"sheet => ({FOCUS_IS_IN})(sheet) || document.activeElement === document.body")
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    expect(opener).to_be_focused()
    opener.click()
    sheet.locator("[popovertargetaction=hide]").click()
    expect(sheet).to_be_hidden()
    expect(opener).to_be_focused()
    opener.click()
    page.mouse.click(5, 5)  # beside it
    expect(sheet).to_be_hidden()


def test_the_sheet_of_a_rollback_on_the_overview_takes_the_focus_too(page_of: Pages) -> None:
    with_stable()
    page = page_of(manager())
    page.goto(reverse("overview"))
    page.locator("button.danger[popovertarget]").first.click()
    sheet = page.locator("dialog.sheet[open]")
    expect(sheet).to_have_count(1)
    assert sheet.evaluate(FOCUS_IS_IN)


def test_a_sheet_that_another_person_made_needless_keeps_what_was_typed(page_of: Pages) -> None:
    rollout, _, approver = awaiting()
    page = page_of(User.objects.get(pk=approver.user_id), expects=("409", "412", "403", "404", "422"))
    page.goto(reverse("approvals"))
    expect(page.locator("body")).to_have_attribute("data-live-state", "live")
    page.locator(f"[popovertarget=approve-{rollout.pk}]").first.click()
    comment = page.locator(f"#why-approve-{rollout.pk}")
    comment.fill("Looks fine to me.")
    other = actor_for(manager("mara"))
    actions.approve(actor=other, rollout=rollout, expected_version=rollout.version, reason="First.")
    sheet = page.locator(f"#approve-{rollout.pk}")
    expect(sheet.locator(".decided")).to_contain_text("decided or withdrawn while the sheet was open")
    expect(comment).to_have_value("Looks fine to me.")
    page.keyboard.press("Escape")
    expect(page.locator("#approvals-waiting")).to_contain_text("Nothing waits for you")


def test_what_was_typed_survives_the_end_of_the_session(page_of: Pages, web: WebServer) -> None:
    user = make_user("ada", team="vision", role=Role.MODEL_TEAM, password="tests-only-secret")
    page = page_of(user, expects=("401",))
    page.goto("/models/new/")
    page.locator("#slug").fill("sentiment")
    page.locator("#description").fill("Mood.\nTwo lines.")
    page.locator("#slow_threshold_ms").select_option("250")
    Session.objects.all().delete()
    page.get_by_role("button", name="Create the model").click()
    expect(page.locator("main .notice")).to_contain_text("What you typed is kept")
    page.locator("#id_username").fill("ada")
    page.locator("#id_password").fill("tests-only-secret")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator("main .notice")).to_contain_text("nothing was sent")
    expect(page.locator("#slug")).to_have_value("sentiment")
    expect(page.locator("#description")).to_have_value("Mood.\nTwo lines.")
    expect(page.locator("#slow_threshold_ms")).to_have_value("250")
    page.locator("#slow_max_frac").fill("0.05")
    page.get_by_role("button", name="Create the model").click()
    expect(page).to_have_url(f"{web.url}/models/sentiment/")
    assert ServedModel.objects.get().description == "Mood.\nTwo lines."
    page.goto("/models/new/")  # what arrived is not offered again
    expect(page.locator("#slug")).to_have_value("")
    sign_in(page.context, web.url, user)


def test_what_one_person_typed_is_not_shown_to_the_next(page_of: Pages) -> None:
    make_user("mara", team="vision", role=Role.MODEL_TEAM, password="tests-only-secret")
    page = page_of(make_user("ada", team="vision", role=Role.MODEL_TEAM), expects=("401",))
    page.goto("/models/new/")
    page.locator("#description").fill("Not for others.")
    page.locator("#slug").fill("sentiment")
    Session.objects.all().delete()
    page.get_by_role("button", name="Create the model").click()
    expect(page.locator("main .notice")).to_contain_text("What you typed is kept")
    page.locator("#id_username").fill("mara")
    page.locator("#id_password").fill("tests-only-secret")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator("#live")).to_be_attached()
    assert page.evaluate("() => sessionStorage.getItem('sluicegate.sent')") is None
    page.goto("/models/new/")
    expect(page.locator("#description")).to_have_value("")
    expect(page.locator("main .notice")).to_have_count(0)


def test_the_account_menu_opens_below_its_button(page_of: Pages) -> None:
    for size in ({"width": 390, "height": 800}, {"width": 1280, "height": 900}):
        page = page_of(manager(), viewport=size)
        page.goto(reverse("overview"))
        page.locator("details.account > summary").click()
        button, menu = (page.locator(f"details.account > {one}").bounding_box() for one in ("summary", "div"))
        assert button is not None and menu is not None and menu["y"] >= button["y"] + button["height"]


def test_a_lost_connection_is_announced_once(page_of: Pages, web: WebServer) -> None:
    web.has_stream = False
    rollout, _ = with_stable()
    page = page_of(manager(), expects=("ERR_FAILED", "Failed to fetch", "503"))
    page.goto(reverse("rollout", args=[rollout.pk]))
    page.route(LIVE, lambda route: route.abort())
    page.evaluate(
        "() => { window.told = []; new MutationObserver(() => told.push(1)).observe("
        "document.getElementById('no-news-said'), { childList: true, characterData: true, subtree: true }); }"
    )
    page.evaluate("Date.now = ((real) => () => real() + 60000)(Date.now)")  # a minute later
    seconds = page.locator("#no-news")
    expect(seconds).to_contain_text("No news since")
    first = seconds.inner_text()
    expect(seconds).not_to_have_text(first)  # the seconds go on for those who see them
    assert page.evaluate("told.length") == 1
    assert page.locator("#no-news").get_attribute("role") is None
