"""The dangerous moments of a rollout's page, in a real browser: races, the Enter key, a lost connection, an ended session."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import Page, expect

from accounts.core.access import Role
from accounts.models import User
from rollouts import actions
from rollouts.models import Rollout
from serving.models import Route
from tests.support.rigs.browser_rig import WITHIN_MS
from tests.support.rigs.web_rig import WebServer
from tests.support.worlds.factories import make_admin, make_user
from tests.support.worlds.rollout_setup import promoted, put, with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=WITHIN_MS)
Pages = Callable[..., Page]
LIVE = "**/_live/**"


def see(page: Page, name: str, *args: Any) -> Page:
    page.goto(reverse(name, args=args))
    return page


def manager() -> User:
    return make_user(team="search", role=Role.RELEASE_MANAGER)


def version_on_page(page: Page) -> int:
    return int(page.locator("#sheet-promote_now input[name=version]").input_value())


def main(page: Page) -> Any:
    return expect(page.locator("main"))


def without_news(page: Page) -> Page:
    """A page that gets no fragment any more, as if the server were gone for it."""
    page.route(LIVE, lambda route: route.abort())
    return page


def test_roll_back_is_done_though_the_page_missed_what_happened(page_of: Pages) -> None:
    rollout, stable = with_stable()
    page = without_news(see(page_of(manager(), expects=("ERR_FAILED", "Failed to fetch")), "rollout", rollout.pk))
    seen = version_on_page(page)
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="A spike.")
    page.locator("button[formaction$='/abort/']").click()
    main(page).to_contain_text(f"Rolling back to {stable.name}")
    rollout.refresh_from_db()
    assert rollout.state == "rolling_back" and rollout.version > seen + 1


def test_roll_back_is_done_though_the_rollout_was_promoted_in_that_moment(page_of: Pages) -> None:
    rollout, stable = promoted()
    put(rollout, "baking", undo_until=None)
    page = without_news(see(page_of(manager(), expects=("ERR_FAILED", "Failed to fetch")), "rollout", rollout.pk))
    put(rollout, "promoted", undo_until=timezone.now() + timedelta(minutes=5))
    page.locator("button[formaction$='/abort/']").click()
    main(page).to_contain_text("reverted")
    assert Route.objects.get(model=rollout.model).stable_id == stable.pk


def test_enter_opens_nothing_and_every_button_keeps_its_place(page_of: Pages) -> None:
    rollout, _ = with_stable(approvals={"bake": 1})
    page = see(page_of(manager()), "rollout", rollout.pk)
    places = "[...document.querySelectorAll('.verbs > * > button:not([hidden])')].map(b => [b.textContent, b.offsetLeft, b.offsetTop])"
    before = page.evaluate(places)
    assert [one[0] for one in before][:2] == ["Roll back to r1", "Pause"]
    for sheet in ("approve", "promote_now", "advance"):
        page.locator(f"[popovertarget=sheet-{sheet}]").first.click()
        why = page.locator(f"#why-{sheet}")
        expect(why).to_be_focused()
        page.keyboard.insert_text("A note.")
        page.keyboard.press("Enter")
        expect(why).to_have_value("A note.")
        page.locator(f"#sheet-{sheet} [popovertargetaction=hide]").click()
    page.locator("#why-shut").fill("A note.")
    page.keyboard.press("Enter")
    rollout.refresh_from_db()
    assert (rollout.state, rollout.approvals.count()) == ("shifting", 0)
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
    main(page).to_contain_text("Paused by")
    assert page.evaluate(places) == before
    expect(page.locator("#why-shut")).to_have_value("A note.")


def test_an_opened_sheet_means_what_it_showed(page_of: Pages) -> None:
    rollout, _ = with_stable()
    page = see(page_of(manager(), expects=("412",)), "rollout", rollout.pk)
    page.locator("[popovertarget=sheet-promote_now]").first.click()
    seen = version_on_page(page)
    with transaction.atomic():  # while it is paused, the sheet's verb is not there
        actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
        actions.resume(actor=make_admin(), rollout=rollout, expected_version=seen + 1, reason="It is over.")
    main(page).to_contain_text("Resumed by")
    assert version_on_page(page) == seen
    page.locator("#why-promote_now").fill("Now.")
    page.locator("#sheet-promote_now button.primary").click()
    main(page).to_contain_text("(stale)")
    assert Rollout.objects.get().state == "shifting"


def test_a_page_without_news_says_so_and_recovers(page_of: Pages, web: WebServer) -> None:
    web.has_stream = False
    rollout, _ = with_stable()
    page = see(page_of(manager(), expects=("ERR_FAILED", "Failed to fetch", "503")), "rollout", rollout.pk)
    silence = page.locator("#no-news")
    expect(silence).to_be_hidden()
    without_news(page)
    page.evaluate("Date.now = ((real) => () => real() + 60000)(Date.now)")  # a minute later
    expect(silence).to_contain_text("No news since")
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
    page.unroute(LIVE)
    main(page).to_contain_text("A spike.")
    expect(silence).to_be_hidden()
    assert "paused · " in page.title() and page.title().startswith("‖ ")


def test_an_ended_session_offers_to_sign_in_and_leaves_the_page(page_of: Pages, web: WebServer) -> None:
    """Where no stream says that it was ended by somebody; that loads the page anew."""
    web.has_stream = False
    rollout, _ = with_stable()
    page = see(page_of(manager(), expects=("401", "503")), "rollout", rollout.pk)
    Session.objects.all().delete()
    link = page.locator("#no-news a")
    expect(link).to_have_attribute("href", f"/sign-in/?next=%2Frollouts%2F{rollout.pk}%2F")
    said = page.locator("body").inner_text()
    assert "no longer signed in" in said and "Guards" in said and "Password" not in said
    expect(page.locator("header.top")).to_have_count(1)


def test_the_undo_window_counts_down_and_goes(page_of: Pages) -> None:
    rollout, stable = promoted(warm_s=59)  # in seconds, so that every look is another one
    page = see(page_of(manager()), "rollout", rollout.pk)
    left = page.locator("form.notice time .ago")
    first = left.inner_text()
    assert first.startswith("in ")
    main(page).to_contain_text(f"Roll back to {stable.name}")
    expect(left).not_to_have_text(first)
    page.evaluate("Date.now = ((real) => () => real() + 60000)(Date.now)")  # a minute later
    put(rollout, "promoted", undo_until=timezone.now())
    main(page).to_contain_text("The undo window has closed")
    main(page).not_to_contain_text(f"Roll back to {stable.name}")
    main(page).to_contain_text(f"start a rollout of {stable.name}")
    expect(page.locator("#rollout-live")).not_to_have_attribute("hx-get", "")


def test_the_policy_unfolds_where_a_link_leads_to_it(page_of: Pages) -> None:
    rollout, _ = with_stable(approvals={"bake": 1})
    page = see(page_of(manager()), "rollout", rollout.pk)
    expect(page.locator("#policy")).to_be_hidden()
    page.locator("main a[href='#policy']:visible").first.click()
    expect(page.locator("#policy")).to_be_visible()


def test_a_policy_of_its_own_can_be_written_once_it_is_chosen(page_of: Pages) -> None:
    rollout, _ = with_stable()
    page = see(page_of(manager()), "release_rollout", rollout.model.slug, rollout.candidate.number)
    expect(page.locator("#policy_json")).to_be_hidden()
    page.locator("#policy").select_option("json")
    expect(page.locator("#policy_json")).to_be_visible()
