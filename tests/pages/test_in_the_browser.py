"""The dangerous moments of a rollout's page, in a real browser: races, the Enter key, a lost connection, an ended session."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Role
from accounts.models import User
from rollouts import actions
from rollouts.models import Rollout
from serving.models import Route
from tests.browser import Browser
from tests.factories import make_admin, make_user
from tests.rollout_setup import promoted, put, with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def see(browser: Browser, live_server: Any, user: User, name: str, *args: Any) -> None:
    client = Client()
    client.force_login(user)
    browser.sign_in(live_server.url, client.cookies["sessionid"].value)
    browser.open(live_server.url + reverse(name, args=args))


def manager() -> User:
    return make_user(team="search", role=Role.RELEASE_MANAGER)


def version_on_page(browser: Browser) -> int:
    return int(browser.js("document.querySelector('#sheet-promote_now input[name=version]').value"))


def test_roll_back_is_done_though_the_page_missed_what_happened(browser: Browser, live_server: Any) -> None:
    rollout, stable = with_stable()
    see(browser, live_server, manager(), "rollout", rollout.pk)
    browser.block("*/_live/*")
    seen = version_on_page(browser)
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="A spike.")
    browser.click("button[formaction$='/abort/']")
    browser.loaded()
    rollout.refresh_from_db()
    assert rollout.state == "rolling_back" and rollout.version > seen + 1
    assert f"Rolling back to {stable.name}" in browser.text()


def test_roll_back_is_done_though_the_rollout_was_promoted_in_that_moment(browser: Browser, live_server: Any) -> None:
    rollout, stable = promoted()
    put(rollout, "baking", undo_until=None)
    see(browser, live_server, manager(), "rollout", rollout.pk)
    browser.block("*/_live/*")
    put(rollout, "promoted", undo_until=timezone.now() + timedelta(minutes=5))
    browser.click("button[formaction$='/abort/']")
    browser.loaded()
    assert Route.objects.get(model=rollout.model).stable_id == stable.pk
    assert "reverted" in browser.text()


def test_enter_opens_nothing_and_every_button_keeps_its_place(browser: Browser, live_server: Any) -> None:
    rollout, _ = with_stable(approvals={"bake": 1})
    see(browser, live_server, manager(), "rollout", rollout.pk)
    places = "[...document.querySelectorAll('.verbs > * > button:not([hidden])')].map(b => [b.textContent, b.offsetLeft, b.offsetTop])"
    before = browser.js(places)
    assert [one[0] for one in before][:2] == ["Roll back to r1", "Pause"]
    for sheet in ("approve", "promote_now", "advance"):
        browser.click(f"[popovertarget=sheet-{sheet}]")
        browser.wait_for(f"document.activeElement.id === 'why-{sheet}'")
        browser.type("A note.")
        browser.enter()
        browser.wait_for(f"document.querySelector('#why-{sheet}').value === 'A note.'")
        browser.click(f"#sheet-{sheet} [popovertargetaction=hide]")
    browser.js("document.querySelector('#why-shut').focus()")
    browser.type("A note.")
    browser.enter()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.version, rollout.approvals.count()) == ("shifting", rollout.version, 0)
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
    browser.wait_for("document.body.innerText.includes('Paused by')")
    assert browser.js(places) == before
    assert browser.js("document.querySelector('#why-shut').value") == "A note."


def test_an_opened_sheet_means_what_it_showed(browser: Browser, live_server: Any) -> None:
    rollout, _ = with_stable()
    see(browser, live_server, manager(), "rollout", rollout.pk)
    browser.click("[popovertarget=sheet-promote_now]")
    seen = version_on_page(browser)
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
    actions.resume(actor=make_admin(), rollout=rollout, expected_version=seen + 1, reason="It is over.")
    browser.wait_for("document.body.innerText.includes('Resumed by')")
    assert version_on_page(browser) == seen
    browser.js("document.querySelector('#why-promote_now').focus()")
    browser.type("Now.")
    browser.click("#sheet-promote_now button.primary")
    browser.loaded()
    assert "(stale)" in browser.text() and Rollout.objects.get().state == "shifting"


def test_a_page_without_news_says_so_and_recovers(browser: Browser, live_server: Any) -> None:
    rollout, _ = with_stable()
    see(browser, live_server, manager(), "rollout", rollout.pk)
    assert browser.js("document.querySelector('#no-news').hidden")
    browser.block("*/_live/*")
    browser.js("Date.now = ((real) => () => real() + 60000)(Date.now)")  # a minute later
    browser.wait_for("document.querySelector('#no-news').innerText.startsWith('No news since')")
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
    browser.block()
    browser.wait_for("document.querySelector('#no-news').hidden && document.body.innerText.includes('A spike.')")
    assert browser.js("document.title").startswith("paused · ")


def test_an_ended_session_offers_to_sign_in_and_leaves_the_page(browser: Browser, live_server: Any) -> None:
    rollout, _ = with_stable()
    see(browser, live_server, manager(), "rollout", rollout.pk)
    Session.objects.all().delete()
    browser.wait_for("document.querySelector('#no-news a') !== null")
    said = browser.text()
    assert "no longer signed in" in said and "Guards" in said and "Password" not in said
    assert browser.js("document.querySelectorAll('header.top').length") == 1
    link = browser.js("document.querySelector('#no-news a').getAttribute('href')")
    assert link == f"/sign-in/?next=%2Frollouts%2F{rollout.pk}%2F"


def test_the_undo_window_counts_down_and_goes(browser: Browser, live_server: Any) -> None:
    rollout, stable = promoted(warm_s=59)  # in seconds, so that every look is another one
    see(browser, live_server, manager(), "rollout", rollout.pk)
    first = browser.js("document.querySelector('form.notice time').innerText")
    assert first.startswith("in ") and f"Roll back to {stable.name}" in browser.text()
    browser.wait_for(f"document.querySelector('form.notice time')?.innerText !== {first!r}")
    put(rollout, "promoted", undo_until=timezone.now())
    browser.wait_for("document.body.innerText.includes('The undo window has closed')")
    assert f"Roll back to {stable.name}" not in browser.text()
    assert f"start a rollout of {stable.name}" in browser.text()
    assert not browser.js("document.querySelector('#rollout-live').hasAttribute('hx-get')")


def test_the_policy_unfolds_where_a_link_leads_to_it(browser: Browser, live_server: Any) -> None:
    rollout, _ = with_stable(approvals={"bake": 1})
    see(browser, live_server, manager(), "rollout", rollout.pk)
    assert not browser.js("document.querySelector('#policy').closest('details').open")
    browser.click(".lead ~ p a[href='#policy']")
    browser.wait_for("document.querySelector('#policy').closest('details').open")


def test_a_policy_of_its_own_can_be_written_once_it_is_chosen(browser: Browser, live_server: Any) -> None:
    rollout, _ = with_stable()
    see(browser, live_server, manager(), "release_rollout", rollout.model.slug, rollout.candidate.number)
    assert browser.js("document.querySelector('#policy_json').offsetParent === null")
    browser.js("document.querySelector('#policy').value = 'json'")
    assert browser.js("document.querySelector('#policy_json').offsetParent !== null")
