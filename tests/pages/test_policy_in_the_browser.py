"""The Content-Security-Policy in a real browser: our pages work under it, and what is injected does not run."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.pages.test_in_the_browser import Pages, manager, see
from tests.support.rigs.browser_rig import WITHIN_MS
from tests.support.worlds.rollout_setup import with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=WITHIN_MS)
#: Runs before each page's own scripts: what the policy stopped.
NOTE = """window.stopped = [];
document.addEventListener("securitypolicyviolation", (event) => stopped.push(event.violatedDirective + " " + event.sample));"""
INJECT = """(() => {
  const script = document.createElement("script");
  script.textContent = "window.ran = 1";
  document.body.append(script);
  document.body.insertAdjacentHTML("beforeend", '<img src="x" onerror="window.ran = 2"><b style="color: red">b</b>');
  return new Promise((done) => { const look = () => stopped.length >= 3 ? done() : setTimeout(look, 50); look(); });
})()"""


def test_pages_keep_the_policy_and_what_is_injected_does_not_run(page_of: Pages) -> None:
    rollout, stable = with_stable()
    page = page_of(manager(), expects=("Content Security Policy", "404"))  # of what is injected at the end
    page.add_init_script(NOTE)
    slug, number = stable.model.slug, stable.number
    for name, arguments in (
        ("overview", ()), ("model", (slug,)), ("release", (slug, number)), ("release_rollout", (slug, rollout.candidate.number)),
        ("audit", ()), ("webhooks", ()), ("rollout", (rollout.pk,)),
    ):  # fmt: skip
        see(page, name, *arguments)
        assert page.evaluate("stopped") == [], name
    expect(page.locator("body")).to_have_attribute("data-live-state", "live")
    assert page.evaluate("stopped") == [], "the stream's worker, and the live fragment"
    page.evaluate(INJECT)
    assert page.evaluate("window.ran") is None
