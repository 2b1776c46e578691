"""What people come for, from the first page to the last, in a real browser on the real web server: stories by role.

The engine, gateways and inference servers are not here; where a story needs them, tests/flows and tests/real tell it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.urls import reverse
from playwright.sync_api import Page, expect

from accounts.actions import actor_for
from accounts.core.access import Role
from rollouts import actions
from rollouts.models import Approval, Rollout
from tests.support.rigs.browser_rig import WITHIN_MS
from tests.support.rigs.web_rig import WebServer
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import awaiting, with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=WITHIN_MS)
Pages = Callable[..., Page]
ROOT = Path(__file__).resolve().parents[2]


def test_on_call_rolls_back_from_the_overview_in_two_clicks_and_the_others_see_it(page_of: Pages) -> None:
    rollout, stable = with_stable()
    watching = page_of(make_user("watcher", team="search"))
    watching.goto(reverse("rollout", args=[rollout.pk]))
    expect(watching.locator("body")).to_have_attribute("data-live-state", "live")
    page = page_of(make_user("oncall", team="search", role=Role.RELEASE_MANAGER))
    page.goto("/")
    page.get_by_role("button", name=f"Roll back to {stable.name}…").first.click()
    sheet = page.locator("dialog[open]")
    expect(sheet).to_contain_text(f"All its traffic in {rollout.environment.title} goes to {stable.name}")
    sheet.get_by_role("button", name=f"Roll back to {stable.name}").click()
    expect(page.locator("main")).to_contain_text("rolling back")
    rollout.refresh_from_db()
    assert rollout.state == "rolling_back" and "oncall" in rollout.reason
    expect(watching.locator("main")).to_contain_text("Rolling back")
    assert watching.title().startswith("✕ ")


def test_an_author_cannot_approve_and_somebody_else_does_while_the_inbox_follows(page_of: Pages) -> None:
    rollout, _, _ = awaiting()
    author = rollout.candidate.author
    assert author is not None
    own, other = page_of(author), page_of(make_user("second", team="search", role=Role.RELEASE_MANAGER))
    for page in (own, other):
        page.goto(reverse("approvals"))
        expect(page.locator("body")).to_have_attribute("data-live-state", "live")
    expect(own.locator("main")).to_contain_text("Nothing waits for you")
    expect(own.get_by_role("button", name=re.compile("^Approve"))).to_have_count(0)
    other.get_by_role("button", name=re.compile("^Approve .*…$")).first.click()
    sheet = other.locator("dialog[open]")
    why = sheet.locator("input[name=reason], textarea[name=reason]")
    why.fill("Compared with r1.")
    sheet.get_by_role("button", name=re.compile("^Approve")).click()
    expect(other.locator("main")).to_contain_text("Compared with r1.")
    assert [one.approver.username for one in Approval.objects.select_related("approver")] == ["second"]
    assert Rollout.objects.get().state == "preparing"
    expect(own.locator(f"#rollout-{rollout.pk}")).to_have_count(0)  # seen live: nothing was loaded anew


def test_a_token_made_on_the_page_lets_the_command_line_in(page_of: Pages, web: WebServer) -> None:
    rollout, _ = with_stable()
    page = page_of(make_user("ann", team="search"))
    page.goto(reverse("account"))
    page.get_by_label("Name (where you use it)").fill("laptop")
    page.get_by_role("button", name=re.compile("token", re.IGNORECASE)).last.click()
    body = page.locator("main")
    if page.locator("main").get_by_text(re.compile("sg_[A-Za-z0-9_-]{20,}")).count() == 0:
        body.get_by_role("button").first.click()  # the confirmation repeats what will happen
    expect(body).to_contain_text(re.compile(r"sg_[\w-]{20,}"))
    found = re.search(r"sg_[\w-]{20,}", body.inner_text())
    assert found is not None
    env = {**os.environ, "SLUICEGATE_URL": web.url, "SLUICEGATE_TOKEN": found[0], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sluicegate.cli", "model", "list"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert rollout.model.slug in done.stdout
    page.goto(reverse("account"))
    expect(page.locator("main")).not_to_contain_text(found[0])


def test_what_happened_is_found_in_the_audit_log_afterwards(page_of: Pages) -> None:
    rollout, _ = with_stable()
    person = make_user("ann", team="search")
    actions.pause(actor=actor_for(person), rollout=rollout, expected_version=None, reason="A spike at the door.")
    page = page_of(person)
    page.goto(reverse("audit"))
    expect(page.locator("main")).to_contain_text("A spike at the door.")
