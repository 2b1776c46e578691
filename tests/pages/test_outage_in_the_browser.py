"""A node falls silent while pages stand open: each of them states it within ten seconds, and none shows a good word."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import BrowserContext, Page, expect

from accounts.core.access import Role
from registry.models import Release
from rollouts.core.latency import NOTHING
from rollouts.core.recent_traffic import RecentTraffic
from rollouts.models import TrafficRecord
from serving.environments.queries.reporting import REPORTS_WITHIN
from serving.models import Node
from tests.support.rigs.browser_rig import GOOD, GREEN, TEXT, WITHIN_MS
from tests.support.worlds.factories import make_model, make_release, make_replica, make_server, make_team, make_user
from tests.support.worlds.rollout_setup import OBJECTIVES, production, promoted, serves

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=WITHIN_MS)
#: What the event stream, the look at the element and the answer take, in seconds, on an idle machine: three. A busy one takes longer.
SEEN_WITHIN_S = 60.0


def served() -> Release:
    """A promoted release with one server that answers, on the node `local`."""
    make_team("search")
    rollout, _ = promoted(is_ready=False, warm_s=None)
    make_server(make_replica(rollout.candidate, production(), state="ready"))
    return rollout.candidate


@contextmanager
def reporting() -> Iterator[Callable[[], None]]:
    """The agent of every node, as far as its reports go, until what is yielded is called."""
    stop = threading.Event()

    def report() -> None:
        while not stop.is_set():
            Node.objects.update(seen_at=timezone.now())
            stop.wait(1.0)
        connection.close()

    thread = threading.Thread(target=report)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    try:
        yield end
    finally:
        end()


def failing(release: Release) -> None:
    """What the gateways counted since: all of the last requests failed."""
    now = timezone.now().timestamp()
    traffic = RecentTraffic().after(now - 120, 240, 0, NOTHING).after(now, 40, 40, NOTHING)
    TrafficRecord.objects.update_or_create(
        environment=production(), model=release.model, defaults={"traffic": traffic.to_json(), "at": timezone.now()}
    )


def test_a_silent_node_is_seen_on_every_open_page_and_no_word_is_green(
    context_of: Callable[..., BrowserContext],
) -> None:
    release = served()
    context = context_of(make_user(team="search", role=Role.RELEASE_MANAGER))
    addresses = {
        "overview": reverse("overview"),
        "model": reverse("model", args=[release.model.slug]),
        "fleet": reverse("fleet"),
        "approvals": reverse("approvals"),
    }
    with reporting() as end:
        pages = {}
        for name, address in addresses.items():
            page = pages[name] = context.new_page()
            page.goto(address)
            expect(page.locator("body")).to_have_attribute("data-live-state", "live")
        for name in ("overview", "model"):
            expect(pages[name].locator("main")).to_contain_text("1 of 1 answer")
        assert all(not page.title().startswith("✕") for page in pages.values())
        end()
        fell_silent = time.monotonic()
    failing(release)
    for name, page in pages.items():
        page.bring_to_front()
        is_lost(page, name)
    assert time.monotonic() - fell_silent < REPORTS_WITHIN.total_seconds() + SEEN_WITHIN_S
    expect(pages["overview"].locator(".needs")).to_contain_text("no server is known to answer")
    expect(pages["overview"].locator(".needs")).to_contain_text("The agent of local does not report")
    expect(pages["overview"].locator(".needs")).to_contain_text("40 requests in the last seconds: 100")
    expect(pages["model"].locator("main")).to_contain_text("40 requests in the last seconds: 100")
    with reporting():  # the agent is back, and so is the good word
        for name in ("overview", "model"):
            failing(release)  # counts of a minute ago would mean that no gateway is read
            pages[name].bring_to_front()
            expect(pages[name].locator("main .word.ok", has_text="healthy")).to_be_visible()
            expect(pages[name]).not_to_have_title(re.compile("^✕"))


def is_lost(page: Page, name: str) -> None:
    """The page states it, in its text, its title and the navigation, and nothing on it is green."""
    if name != "approvals":
        expect(page.locator("main")).to_contain_text("lost")
        expect(page.locator("main .word.ok")).to_have_count(0)
        assert not GOOD.search(page.evaluate(TEXT))
        assert page.evaluate(GREEN) == []
    expect(page).to_have_title(re.compile("^✕ "))
    expect(page.locator("#main-links .badge.bad")).to_have_text(re.compile("^1"))
    assert "image/svg+xml," in str(page.locator("link[rel=icon]").get_attribute("href"))


def test_figures_are_fetched_without_an_event(page_of: Callable[..., Page]) -> None:
    """Traffic writes no event; “Live” holds for it as well."""
    release = make_release(make_model("sentiment", team=make_team("search"), objectives=OBJECTIVES))
    serves(release)
    make_server(make_replica(release, production(), state="ready"))
    with reporting():
        page = page_of(make_user(team="search", role=Role.RELEASE_MANAGER))
        page.goto(reverse("overview"))
        expect(page.locator("main")).to_contain_text("No traffic yet")
        failing(release)
        row = page.locator("td[data-label=Requests]")
        expect(row).to_contain_text("100 % failed")
        expect(row.locator(".word.bad").first).to_be_visible()
