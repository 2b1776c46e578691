"""Browser notifications: whom the server tells of what, and a real browser that shows them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from accounts.models import User
from ledger.actions import append_event
from ledger.queries import head_seq
from rollouts import actions
from rollouts.models import Rollout
from tests.support.rigs.browser_rig import WITHIN_MS
from tests.support.worlds.factories import make_model, make_user
from tests.support.worlds.rollout_setup import OBJECTIVES, awaiting, production, release_of, serves, with_stable
from web.pages import notices as page

ENGINE = Actor.system("engine")


def ask(user: User, after: int | None) -> Any:
    client = Client()
    client.force_login(user)
    answer = client.get(reverse("notices"), {} if after is None else {"after": after})
    assert answer.status_code == 200 and "no-store" in answer["Cache-Control"]
    return answer.json()


def rolled_back(rollout: Rollout) -> None:
    facts = {"model": rollout.model.slug, "candidate": "r2", "environment": "production"}
    append_event(
        verb="rollout.rolled_back",
        subject_type="rollout",
        subject_id=rollout.pk,
        actor=ENGINE,
        reason="slow: 4 %",
        facts=facts,
    )


@pytest.mark.django_db
class TestWhoHearsOfWhat:
    def test_an_approval_is_told_to_whom_it_waits_for_and_once(self) -> None:
        append_event(verb="route.set", subject_type="route", subject_id=1, actor=ENGINE)
        before = head_seq()
        rollout, requester, manager = awaiting()
        append_event(
            verb="rollout.approval_requested", subject_type="rollout", subject_id=rollout.pk, actor=ENGINE,
            facts={"model": rollout.model.slug},
        )  # fmt: skip
        mine = ask(User.objects.get(pk=manager.user_id), before)
        assert mine["seq"] == head_seq()
        (notice,) = mine["notices"]
        assert notice["key"] == f"approval:{rollout.pk}:start" and notice["url"] == "/approvals/"
        assert "waits for your approval" in notice["title"] and "is loaded and warmed" in notice["body"]
        for other in (
            User.objects.get(pk=requester.user_id), make_user(team="search", role=Role.VIEWER),
            make_user(team="other", role=Role.RELEASE_MANAGER),
        ):  # fmt: skip
            assert ask(other, before)["notices"] == []
        actions.approve(actor=manager, rollout=rollout, expected_version=rollout.version)
        assert ask(User.objects.get(pk=manager.user_id), before)["notices"] == []

    def test_a_rollback_is_told_to_those_whose_it_is(self) -> None:
        rollout, _ = with_stable()
        before = head_seq()
        rolled_back(rollout)
        ours = make_user(team="search", role=Role.MODEL_TEAM)
        (notice,) = ask(ours, before)["notices"]
        assert notice["url"] == f"/rollouts/{rollout.pk}/" and notice["body"] == "slow: 4 %"
        assert notice["title"].endswith("was rolled back")
        for other in (
            make_user(team="search", role=Role.VIEWER),
            make_user(team="other", role=Role.MODEL_TEAM),
            make_user(is_admin=True),
        ):
            assert ask(other, before)["notices"] == []

    def test_what_is_old_or_was_there_before_is_not_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rollout, _ = with_stable()
        ours = make_user(team="search", role=Role.MODEL_TEAM)
        before = head_seq()
        rolled_back(rollout)
        assert ask(ours, None)["notices"] == ask(ours, head_seq())["notices"] == []
        assert ask(ours, before)["notices"]
        later = timezone.now() + page.FRESH + timedelta(minutes=1)
        monkeypatch.setattr(page.timezone, "now", lambda: later)
        assert ask(ours, before)["notices"] == []

    def test_it_stays_small_and_cheap_however_much_happens(self) -> None:
        ours = make_user(team="search", role=Role.MODEL_TEAM)
        before = head_seq()
        rollouts = [with_stable()[0] for _ in range(page.MOST_SHOWN + 2)]
        for rollout in rollouts:
            rolled_back(rollout)
        client = Client()
        client.force_login(ours)
        with CaptureQueriesContext(connection) as asked:
            told = client.get(reverse("notices"), {"after": before or 1}).json()["notices"]
        assert [one["key"] for one in told] == [f"rollout.rolled_back:{one.pk}" for one in rollouts[-page.MOST_SHOWN :]]
        assert len(asked) <= 12

    def test_nobody_hears_without_a_session(self) -> None:
        assert Client().get(reverse("notices")).status_code == 401


#: Shows what is really shown: the browser's own notification is made as well.
RECORDING = """
  window.shown = [];
  const Real = window.Notification;
  window.Notification = class extends Real {
    constructor(title, options) { super(title, options); window.shown.push({ title, ...options }); }
  };
"""
ON = "They are on, in this browser"


@pytest.mark.real("chromium")
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
class TestInTheBrowser:
    def prepared(self) -> tuple[User, Callable[[], Rollout]]:
        """(a release manager, what asks them for an approval)."""
        manager = make_user("manager", team="search", role=Role.RELEASE_MANAGER)
        requester = make_user("asks", team="search", role=Role.RELEASE_MANAGER)
        environment = production(needs_approval=True)
        model = make_model("sentiment", objectives=OBJECTIVES)
        serves(release_of(model))

        def start() -> Rollout:
            return actions.start_rollout(
                actor=actor_for(requester), candidate=release_of(model), environment=environment
            )

        return manager, start

    def test_turned_on_it_shows_what_waits_once_whatever_tabs_are_open(self, context_of: Callable[..., Any]) -> None:
        manager, start = self.prepared()
        context = context_of(manager)
        context.grant_permissions(["notifications"])
        context.add_init_script(RECORDING)
        first, second = context.new_page(), context.new_page()
        first.goto(reverse("account"))
        switch = first.locator("#browser-notices")
        switch.get_by_role("button", name="Turn them on").click()
        switch.get_by_text(ON).wait_for()
        second.goto(reverse("models"))
        for tab in (first, second):
            tab.locator("body[data-live-state=live]").wait_for(timeout=WITHIN_MS)
        start()

        def shown() -> list[dict[str, str]]:
            return [one for tab in (first, second) for one in tab.evaluate("window.shown")]

        for _ in range(600):
            if shown():
                break
            first.wait_for_timeout(100)
        first.wait_for_timeout(2500)  # longer than another tab would take to show it again
        (notice,) = shown()
        assert notice["title"] == "sentiment r2 waits for your approval" and notice["tag"].startswith("approval:")
        second.reload()
        second.locator("body[data-live-state=live]").wait_for(timeout=WITHIN_MS)
        second.wait_for_timeout(1500)
        assert second.evaluate("window.shown") == []

    def test_turned_off_it_shows_nothing(self, context_of: Callable[..., Any], web: Any) -> None:
        manager, start = self.prepared()
        context = context_of(manager)
        context.grant_permissions(["notifications"])
        context.add_init_script(RECORDING)
        page = context.new_page()
        page.goto(reverse("approvals"))
        switch = page.locator("#browser-notices")
        switch.get_by_role("button", name="Turn them on").click()
        switch.get_by_role("button", name="Turn them off").click()
        switch.get_by_text("They are off in this browser").wait_for()
        page.locator("body[data-live-state=live]").wait_for(timeout=WITHIN_MS)
        asked = web.count("/_notices/")
        start()
        page.get_by_role("button", name="Approve start").wait_for(timeout=WITHIN_MS)  # the page itself has heard of it
        page.wait_for_timeout(1500)
        assert page.evaluate("window.shown") == [] and web.count("/_notices/") == asked

    def test_turned_off_while_it_asks_it_shows_nothing(self, context_of: Callable[..., Any]) -> None:
        context = context_of(make_user("ana"))
        context.grant_permissions(["notifications"])
        context.add_init_script(RECORDING)
        page = context.new_page()
        page.goto(reverse("account"))
        held: list[Any] = []
        page.route("**/_notices/**", lambda asked: held.append(asked))
        switch = page.locator("#browser-notices")
        with page.expect_request("**/_notices/**"):
            switch.get_by_role("button", name="Turn them on").click()
        switch.get_by_role("button", name="Turn them off").click()
        news = {"key": "1", "title": "sentiment r2 waits", "body": "", "url": "/"}
        with page.expect_event("requestfinished"):
            held[0].fulfill(json={"notices": [news], "seq": 1})
        page.wait_for_timeout(500)
        assert page.evaluate("window.shown") == []

    def test_a_refused_permission_is_said_plainly(self, context_of: Callable[..., Any]) -> None:
        context = context_of(make_user("ana"))
        context.grant_permissions([])  # whatever is not named is refused
        page = context.new_page()
        page.goto(reverse("account"))
        switch = page.locator("#browser-notices")
        switch.get_by_text("Your browser refuses notifications of this site").wait_for(timeout=WITHIN_MS)
        assert switch.get_by_role("button").count() == 0

    def test_without_a_script_there_is_no_switch(self, context_of: Callable[..., Any]) -> None:
        page = context_of(make_user("ana"), java_script_enabled=False).new_page()
        page.goto(reverse("account"))
        assert page.locator("#browser-notices").is_hidden() and page.locator("#mails").is_visible()
