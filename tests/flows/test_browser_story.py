"""A release's whole way in a real browser on the whole real stack: from the model's first form to the post-mortem's file.

Ada makes a model, drops a release whose table is too small, loses her upload in the middle, seals, watches the gates pass, and asks for a
rollout. She may approve releases, but not her own; Mara does. Then users ask for what no gate had asked, and the open page
sees traffic go back by itself.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from playwright.sync_api import Browser, Download, Page, Route, expect

from sluicegate.stack import Stack, running
from tests.flows.tiny import (
    ENVIRONMENT,
    MODEL,
    Shop,
    Users,
    graph_with_a_small_table,
    model_document,
    password_of,
    write_release,
)
from tests.support.rigs import browser_rig
from tests.support.worlds.uploading import some_bytes

pytestmark = [
    pytest.mark.real("chromium", "envoy", "triton", "onnx"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
expect.set_options(timeout=browser_rig.WITHIN_MS)
PART_BYTES = 5 << 20  # the least that a store takes
PARTS = 3  # of the weights
#: For what the whole stack must do first, on a machine that others use, too.
PATIENCE_MS = 300_000
PART = re.compile("/upload-parts/")
AUTHOR = ("model_team", "release_manager")  # who may approve what others made
#: Notes in the page each state that it shows; what is noted is lost with the page.
NOTES_STATES = """() => {
  const state = () => document.querySelector("#rollout-live .sentence [role=status]").innerText.trim().replace(/^\\W+/, "");
  window.states = [state()];
  new MutationObserver(() => { if (state() !== window.states.at(-1)) window.states.push(state()); })
    .observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true });
}"""
#: Somebody else says yes before the first request reaches a release.
POLICY = {**model_document(2)["rollout_policy"], "approvals": {"start": 1}}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    env = {"SLUICEGATE_UPLOAD_PART_BYTES": str(PART_BYTES)}
    with running(tmp_path / "state", env=env, ready_s=300) as up:
        yield up


@pytest.fixture
def people(stack: Stack) -> Iterator[Callable[[str], Page]]:
    """`people(name)`: a page in a browser profile of that person's own, signed in by the form. What pages complain of is an error."""
    with ExitStack() as open_now:
        browser: Browser = open_now.enter_context(browser_rig.chromium())
        heard: list[str] = []

        def signed_in(name: str) -> Page:
            url = stack.base_url.replace("127.0.0.1", "localhost")
            context, complaints = browser_rig.new_context(browser, url, accept_downloads=True)
            open_now.callback(lambda: (heard.extend(complaints), context.close()))
            page = context.new_page()
            page.goto("/")
            page.get_by_label("User name").fill(name)
            page.get_by_label("Password").fill(password_of(name))
            page.get_by_role("button", name="Sign in", exact=True).click()
            expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
            return page

        yield signed_in
    assert heard == []


def test_from_a_models_first_form_to_the_post_mortem_of_its_rollback(
    stack: Stack, people: Callable[[str], Page], tmp_path: Path
) -> None:
    with ExitStack() as until_the_end:
        shop = until_the_end.enter_context(Shop(stack, tmp_path, step_s=2, has_model=False, author_roles=AUTHOR))
        users = until_the_end.enter_context(Users(stack, begins=False))
        aside = until_the_end.enter_context(ThreadPoolExecutor(1))
        ada = people("ada")
        create_the_model(ada)
        first = shop.seal(write_release(tmp_path / "one", shop.image, note="one"))
        proven = aside.submit(shop.pass_gates, first)
        serves = aside.submit(lambda: roll_out_the_first(shop, first, users))
        send_in_two_goes(ada, candidate_folder(tmp_path, shop))
        proven.result()
        digest = seal_and_see_the_gates_pass(ada, stack)
        assert shop.author.get(f"/models/{MODEL}/releases/r2")["digest"] == digest
        serves.result()
        mara = people("mara")
        read_the_comparison(ada)
        rollout = start_through_the_preview(ada, mara)
        follow(ada)
        approved_by_somebody_else_alone(ada, mara, rollout)
        states = see_it_rolled_back(ada)
        assert states[0] == "awaiting approval" and states[-1] == "rolled back", states
        told = shop.view(rollout)
        read_the_post_mortem(ada, told, digest)
        assert users.failures == []
        assert shop.author.get(f"/environments/{ENVIRONMENT}")["routes"][0]["stable"] == "r1"


def roll_out_the_first(shop: Shop, name: str, users: Users) -> None:
    """What serves before the story's release; users ask on from here."""
    rollout = shop.start(name)
    shop.approve(rollout, "start")
    shop.until(rollout, "shifting")
    shop.until_acknowledged(rollout)
    users.begin()
    shop.until(rollout, "promoted")


def candidate_folder(tmp_path: Path, shop: Shop) -> Path:
    """Right for every value that the gates try, and larger than one part."""
    folder = write_release(tmp_path / "two", shop.image, note="two", graph=graph_with_a_small_table())
    (folder / "artifact" / "weights.data").write_bytes(some_bytes((PARTS - 1) * PART_BYTES + 17))
    return folder


# --- a model, and a release of it


def create_the_model(page: Page) -> None:
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("link", name="New model").first.click()
    page.locator("#text").fill(yaml.safe_dump({**model_document(2), "rollout_policy": POLICY}))
    page.get_by_role("button", name="Create from the text").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Twice the number")


def send_in_two_goes(page: Page, folder: Path) -> None:
    """One part arrives, and then the page is loaded anew: what arrived is not sent again."""
    begun: list[str] = []
    arrived: list[str] = []
    went_on: list[str] = []

    def one_alone(route: Route) -> None:
        begun.append(path_of(route))
        if len(begun) > 1:
            return  # it waits until the page goes
        answer = route.fetch()
        assert answer.ok
        route.fulfill(response=answer)
        arrived.append(path_of(route))

    def every(route: Route) -> None:
        went_on.append(path_of(route))
        route.continue_()

    page.get_by_role("link", name="Upload a release").click()
    choose(page, folder)
    page.context.route(PART, one_alone)
    page.locator("#send:enabled").click()
    until = time.monotonic() + PATIENCE_MS / 1000
    while not arrived:
        assert time.monotonic() < until, page.locator("main").inner_text()
        page.wait_for_timeout(50)
    page.once("dialog", lambda leaves: leaves.accept())
    page.reload()
    expect(page.locator("#resume-words")).to_contain_text("is not finished")
    page.context.unroute(PART)
    page.context.route(PART, every)
    choose(page, folder)
    page.locator("#send:enabled").click()
    expect(page.locator("#sending-words")).to_contain_text("Everything is there and verified", timeout=PATIENCE_MS)
    page.context.unroute(PART)
    parts = set(arrived + went_on)
    assert len(arrived) == 1 and len(parts) == 1 + len(went_on) == PARTS + 1  # the weights' and the graph's, each once


def choose(page: Page, folder: Path) -> None:
    expect(page.locator("#checked")).to_contain_text(".")
    browser_rig.drop(page, "#drop", folder)
    expect(page.locator("#checked")).to_contain_text("Nothing is wrong")


def path_of(route: Route) -> str:
    return urlsplit(route.request.url).path


def seal_and_see_the_gates_pass(page: Page, stack: Stack) -> str:
    """The digest that was sealed. The gates wait until their page is open, so that all of their news comes by the stream."""
    with frozen_worker(stack):
        page.locator("#seal").click()
        digest = page.locator("#sealed-part [data-digest]").inner_text()
        page.get_by_role("link", name="Follow the gates").click()
        expect(page.locator("body")).to_have_attribute("data-live-state", "live")
        run = page.locator("#gate-run-live")
        expect(run.locator("tbody tr")).to_have_count(3)
        expect(run.locator("tbody")).not_to_contain_text("passed")
        opened = page.evaluate("window.opened = performance.timeOrigin")
    expect(run.locator("> p").first).to_contain_text("3 of 3 gates passed", timeout=PATIENCE_MS)
    for gate in ("contract", "cold_start", "load"):
        expect(page.locator("#evidence-live").get_by_role("heading", name=gate)).to_be_visible()
    expect(page.locator("#evidence-live")).to_contain_text("Signed with key")
    expect(page).to_have_title(re.compile("^✓ "))
    assert page.evaluate("window.opened") == opened
    return digest


@contextmanager
def frozen_worker(stack: Stack) -> Iterator[None]:
    """Frozen outside of any transaction of its own: it tidies up after the gates of before, and what it holds nobody else gets."""
    pid = stack.pid_of("worker")
    with psycopg.connect(stack.database_url, autocommit=True) as session:
        until = time.monotonic() + PATIENCE_MS / 1000
        os.kill(pid, signal.SIGSTOP)
        try:
            while any_stands_open(session):
                assert time.monotonic() < until, "the worker is never without a transaction"
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.1)
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def any_stands_open(session: psycopg.Connection[Any]) -> bool:
    """Whether a transaction is open, and still is after a second in which whoever is not frozen goes on."""

    def open_now() -> set[Any]:
        begun = "SELECT pid, xact_start FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
        return set(session.execute(f"{begun} AND datname = current_database()"))

    seen = open_now()
    time.sleep(1)
    return bool(seen & open_now())


# --- what it changes, what would happen, who says yes


def read_the_comparison(page: Page) -> None:
    page.locator(".crumbs").get_by_role("link", name="r2", exact=True).click()
    page.get_by_role("link", name="Compare with another release").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("What r2 changes against r1")
    main = page.locator("main")
    expect(main.get_by_role("table").filter(has_text="load: ")).to_be_visible()
    expect(main).to_contain_text("artifact/weights.data")
    expect(page.locator("section[aria-labelledby=tensors]")).to_contain_text("0 changed, 1 added")  # the table
    page.locator(".crumbs").get_by_role("link", name="r2", exact=True).click()


def start_through_the_preview(author: Page, other: Page) -> int:
    """The rollout's number. Whoever gets the preview's address sees the same, before anything is there."""
    author.get_by_role("link", name="Roll it out…").click()
    author.get_by_role("button", name="Preview").click()
    other.goto(urlsplit(author.url)._replace(scheme="", netloc="").geturl())
    for page in (author, other):
        expect(page.locator("main")).to_contain_text("r2 over r1 in production")
        expect(page.get_by_role("row", name=re.compile("^start 50 %.* 1$"))).to_be_visible()
    author.get_by_role("button", name="Request the rollout…").click()
    author.locator("dialog[open]").get_by_role("button", name="Request the rollout").click()
    author.wait_for_url(re.compile(r"/rollouts/\d+/$"))
    expect(author.locator("#rollout-live .sentence")).to_contain_text("awaiting approval")
    return int(author.url.rstrip("/").rpartition("/")[2])


def approved_by_somebody_else_alone(author: Page, other: Page, rollout: int) -> None:
    """The author, who may approve what others made, is offered nothing, and refused who asks all the same."""
    expect(author.get_by_role("button", name=re.compile("^Approve"))).to_have_count(0)
    address = f"/api/v1/rollouts/{rollout}"
    version = str(author.request.get(address).json()["version"])
    token = author.locator("[name=csrfmiddlewaretoken]").first.input_value()
    refused = author.request.post(
        f"{address}/approve", data={"reason": "Mine."}, headers={"If-Match": version, "X-CSRFToken": token}
    )
    assert (refused.status, refused.json()["code"]) == (403, "own_release"), refused.text()
    other.get_by_role("link", name="Approvals").click()
    other.get_by_role("link", name="what differs").click()
    other.get_by_role("button", name="Approve start…").click()
    sheet = other.locator("dialog[open]")
    sheet.get_by_label("Comment").fill("Compared with r1.")
    sheet.get_by_role("button", name="Approve start").click()
    expect(other.locator("main")).to_contain_text("Compared with r1.")


# --- what happens, seen live, and what is kept of it


def follow(page: Page) -> None:
    expect(page.locator("body")).to_have_attribute("data-live-state", "live")
    page.evaluate(NOTES_STATES)


def see_it_rolled_back(page: Page) -> list[str]:
    """The states that the page showed since `follow`, in order. Fails where it was loaded anew."""
    expect(page.locator("#rollout-live .sentence")).to_contain_text("rolled back", timeout=PATIENCE_MS)
    expect(page).to_have_title(re.compile("^✕ rolled back · double r2"))
    expect(page.locator("#rollout-live")).to_contain_text(re.compile(r"Users: [1-9]\d* requests, 0 failed"))
    found: list[str] = page.evaluate("window.states")
    assert found, "the page was loaded anew"
    return found


def read_the_post_mortem(page: Page, told: dict[str, Any], digest: str) -> None:
    page.get_by_role("link", name="Post-mortem").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("double r2 over r1 in Production: rolled back")
    clock = f"{told['clock']['decision_to_zero_s']} s"
    texts = [page.locator("main").inner_text()]
    with page.expect_download() as markdown:
        page.get_by_role("link", name="Markdown").click()
    texts.append(plain(markdown.value.path().read_text()))
    with page.expect_download() as html:
        page.get_by_role("link", name="Download as HTML").click()
    texts.append(read_offline(page, html.value))
    for text in (one.replace("\xa0", " ") for one in texts):  # a unit stays with its number
        for part in (told["reason"], digest, clock, "r1 serves again"):
            assert part in text, (part, text)


def plain(markdown: str) -> str:
    return unescape(re.sub(r"\\(.)", r"\1", markdown))


def read_offline(page: Page, download: Download) -> str:
    """What the file says to somebody who has nothing else: it asks for nothing."""
    kept = Path(str(download.path())).with_suffix(".html")
    download.save_as(kept)
    browser = page.context.browser
    assert browser is not None
    reader = browser.new_context(offline=True)
    asked: list[str] = []
    reader.on("request", lambda request: asked.append(request.url))
    alone = reader.new_page()
    alone.goto(kept.as_uri())
    expect(alone.locator("svg").first).to_be_visible()
    text = alone.locator("body").inner_text()
    reader.close()
    assert asked == [kept.as_uri()]
    return text
