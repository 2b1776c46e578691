"""Pages in a real browser that runs no script: read, steered, and kept fresh by the page itself."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.urls import reverse
from playwright.sync_api import Page, Route, expect

from accounts.core.access import Role
from accounts.models import User
from rollouts import actions
from rollouts.models import Approval
from tests.support.rigs.browser_rig import WITHIN_MS
from tests.support.rigs.web_rig import WebServer
from tests.support.worlds.factories import make_admin, make_user
from tests.support.worlds.rollout_setup import awaiting, with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=WITHIN_MS)
Pages = Callable[..., Page]


def manager(name: str = "mia") -> User:
    return make_user(name, team="search", role=Role.RELEASE_MANAGER)


@pytest.fixture
def plain(page_of: Pages) -> Pages:
    """`plain(user)`: a page of that person in a browser without scripts."""
    return lambda user, **options: page_of(user, java_script_enabled=False, **options)


def say_yes(page: Page, button: str, yes: str) -> None:
    """Opens what asks before something is done, and says yes."""
    page.get_by_role("button", name=f"{button}…").first.click()
    sheet = page.locator("[popover]:popover-open")
    sheet.locator("[name=reason]").fill("Seen.")
    sheet.get_by_role("button", name=yes, exact=True).click()


def test_a_rollout_is_read_paused_resumed_and_rolled_back(plain: Pages, web: WebServer) -> None:
    rollout, stable = with_stable()
    page = plain(manager())
    page.goto(reverse("rollout", args=[rollout.pk]))
    main = page.locator("main")
    for heading in ("Guards", "Pinned versions"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
    expect(page.locator("main svg[role=img]").first).to_be_visible()
    expect(page.get_by_role("button", name="Show local times")).to_be_hidden()
    page.get_by_role("button", name="Pause").click()
    expect(main).to_contain_text("The rollout is paused now.")
    say_yes(page, "Resume", "Resume")
    expect(main).to_contain_text("The rollout is shifting now.")
    page.locator("[name=reason]:visible").first.fill("Errors.")
    page.get_by_role("button", name=f"Roll back to {stable.name}").click()
    expect(main).to_contain_text("The rollout is rolling back now.")
    rollout.refresh_from_db()
    assert rollout.state == "rolling_back" and "Errors." in rollout.reason
    assert web.count("/_stream") == web.count("/_live/") == 0


def test_a_release_is_approved_from_the_inbox(plain: Pages) -> None:
    rollout, _, _ = awaiting()
    page = plain(manager())
    page.goto(reverse("approvals"))
    say_yes(page, "Approve start", "Approve")
    expect(page.locator("main")).to_contain_text("Seen.")
    assert [one.approver.username for one in Approval.objects.select_related("approver")] == ["mia"]
    rollout.refresh_from_db()
    assert rollout.state == "preparing"


def test_a_page_that_shows_what_moves_loads_itself_anew(plain: Pages) -> None:
    """Which pages do is held by tests/pages/test_what_stays_true.py."""
    rollout, _ = with_stable()
    page = plain(manager())
    address = reverse("rollout", args=[rollout.pk])

    def sooner(route: Route) -> None:
        """The page as it is, but for how long it waits."""
        answer = route.fetch()
        page, count = re.subn(r'(<meta http-equiv="refresh" content=")60"', r'\g<1>1"', answer.text())
        assert count == 1
        route.fulfill(response=answer, body=page)

    page.route(re.compile(f"{address}$"), sooner)
    page.goto(address)
    actions.pause(actor=make_admin(), rollout=rollout, expected_version=None, reason="A spike.")
    expect(page.locator("main")).to_contain_text("A spike.")
    page.unroute_all(behavior="ignoreErrors")
