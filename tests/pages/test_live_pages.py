"""Live pages in a real browser, on the real server: news by the stream, and without it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.urls import reverse
from playwright.sync_api import BrowserContext, Page, expect

from accounts import actions as people
from accounts.core.access import Role
from accounts.models import User
from rollouts import actions
from rollouts.models import Rollout
from tests.support.rigs.browser_rig import WITHIN_MS
from tests.support.rigs.gateway_rig import wait_until
from tests.support.rigs.web_rig import WebServer
from tests.support.worlds.factories import make_admin, make_user
from tests.support.worlds.rollout_setup import put, with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=WITHIN_MS)
Pages = Callable[..., Page]


def manager() -> User:
    return make_user(team="search", role=Role.RELEASE_MANAGER)


def see(page: Page, rollout: Rollout) -> None:
    page.goto(reverse("rollout", args=[rollout.pk]))


def is_in_state(page: Page, state: str) -> None:
    expect(page.locator("body")).to_have_attribute("data-live-state", state)


def test_a_rollback_is_seen_by_a_hint_and_nothing_is_polled(page_of: Pages, web: WebServer) -> None:
    rollout, stable = with_stable()
    page = page_of(manager())
    see(page, rollout)
    is_in_state(page, "live")
    expect(page.locator("#live")).to_have_text("Live")

    def is_quiet() -> bool:
        before = web.count("/_live/")
        page.wait_for_timeout(6500)  # longer than the polls of a page without a stream lie apart
        return web.count("/_live/") == before

    assert any(is_quiet() for _ in range(3)), "a page with a stream polls"
    actions.abort(actor=make_admin(), rollout=rollout, expected_version=None, reason="It answers nonsense.")
    expect(page.locator("main")).to_contain_text(f"Rolling back to {stable.name}")
    expect(page).to_have_title(re.compile("^✕ "))
    assert "image/svg+xml," in str(page.locator("link[rel=icon]").get_attribute("href"))


def test_without_a_stream_the_page_polls_and_says_so(page_of: Pages, web: WebServer) -> None:
    web.has_stream = False
    rollout, _ = with_stable()
    page = page_of(manager(), expects=("503",))
    see(page, rollout)
    is_in_state(page, "lost")
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="A spike.")
    expect(page.locator("main")).to_contain_text("A spike.")
    expect(page.locator("#no-news")).to_be_hidden()
    web.has_stream = True
    is_in_state(page, "live")


def test_many_tabs_share_one_stream(context_of: Callable[..., object], web: WebServer) -> None:
    rollout, _ = with_stable()
    context = context_of(manager())
    pages = [context.new_page() for _ in range(7)]  # type: ignore[attr-defined]
    for page in pages:
        see(page, rollout)
    for page in pages:
        is_in_state(page, "live")
    assert len(web.streams.hub) == 1
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="A spike.")
    for page in pages:
        expect(page.locator("main")).to_contain_text("A spike.")


def test_where_a_browser_shares_no_worker_each_page_has_a_stream_while_it_is_seen(
    context_of: Callable[..., BrowserContext], web: WebServer
) -> None:
    rollout, _ = with_stable()
    context = context_of(manager())
    context.add_init_script("delete window.SharedWorker")
    pages = [context.new_page() for _ in range(2)]
    for page in pages:
        see(page, rollout)
        is_in_state(page, "live")
    assert len(web.streams.hub) == 2
    page, away = pages
    show(away, "hidden")
    wait_until(lambda: len(web.streams.hub) == 1, "the hidden page's stream is closed")
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
    expect(page.locator("main")).to_contain_text("A spike.")
    show(away, "visible")  # it comes back, and learns what it missed
    expect(away.locator("main")).to_contain_text("A spike.")
    is_in_state(away, "live")
    wait_until(lambda: len(web.streams.hub) == 2, "the stream of the page that came back")


def show(page: Page, how: str) -> None:
    """As when another tab is brought to the front, or this one again."""
    page.evaluate(
        "how => { Object.defineProperty(document, 'visibilityState', { value: how, configurable: true }); "
        "document.dispatchEvent(new Event('visibilitychange')); }",
        how,
    )


@pytest.mark.parametrize("how", ["deactivated", "role taken", "session ended"])
def test_who_is_shut_out_sees_it_at_once_on_open_pages(page_of: Pages, web: WebServer, how: str) -> None:
    rollout, _ = with_stable()
    user = manager()
    page = page_of(user, expects=("404", "401"))
    see(page, rollout)
    is_in_state(page, "live")
    admin = make_admin()
    if how == "deactivated":
        people.deactivate_user(actor=admin, username=user.username)
    elif how == "role taken":
        people.revoke_role(actor=admin, username=user.username, team="search", role=Role.RELEASE_MANAGER)
    else:
        people.change_password(actor=admin, user=user, password="a long new password 17")
    if how == "role taken":
        expect(page.locator("main")).to_contain_text("There is no rollout")
    else:
        expect(page.locator("input[name=password]")).to_be_visible()
    assert "Guards" not in page.locator("body").inner_text()


def test_a_restarted_server_is_found_again(page_of: Pages, web: WebServer) -> None:
    rollout, _ = with_stable()
    page = page_of(manager(), expects=("ERR_", "Failed"))
    see(page, rollout)
    is_in_state(page, "live")
    hub = web.streams.hub
    web._server.servers[0].get_loop().call_soon_threadsafe(hub.stop)  # every stream ends, as when the process stops
    is_in_state(page, "lost")
    put(rollout, "shifting", reason="Changed while nobody heard.")
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="While it was away.")
    is_in_state(page, "live")
    expect(page.locator("main")).to_contain_text("While it was away.")


def test_half_typed_text_and_focus_survive_news(page_of: Pages) -> None:
    rollout, _ = with_stable()
    page = page_of(manager())
    see(page, rollout)
    is_in_state(page, "live")
    page.locator("#why-shut").fill("Half a rea")
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
    expect(page.locator("main")).to_contain_text("A spike.")
    expect(page.locator("#why-shut")).to_have_value("Half a rea")
    expect(page.locator("#why-shut")).to_be_focused()


def test_times_pass_and_are_told_in_the_zone_that_was_chosen(page_of: Pages) -> None:
    rollout, _ = with_stable()
    page = page_of(manager())
    page.goto(reverse("rollout", args=[rollout.pk]))
    some = page.locator("main time .ago").first
    before = some.inner_text()
    expect(some).not_to_have_text(before)
    instant = page.locator("main time").first
    expect(instant.locator(".at")).to_be_hidden()
    instant.focus()  # as the tab key does: the absolute time needs no pointer
    expect(instant.locator(".at")).to_be_visible()
    expect(page.locator("#times-are")).to_have_text("Times are UTC.")
    page.get_by_role("button", name="Show local times").click()
    expect(page.locator("main time").first).to_have_attribute("title", re.compile(r"\+00:00$"))
    page.reload()
    expect(page.locator("#times-are")).to_have_text("Times are local.")
