"""The Content-Security-Policy in a real browser: our pages work under it, and what is injected does not run."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from tests.browser import Browser
from tests.pages.test_in_the_browser import manager, see
from tests.rollout_setup import with_stable

pytestmark = [pytest.mark.real("chromium"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
#: Runs before each page's own scripts: what the policy stopped.
NOTE = """window.stopped = [];
document.addEventListener("securitypolicyviolation", (event) => stopped.push(event.violatedDirective + " " + event.sample));"""
INJECT = """(() => {
  const script = document.createElement("script");
  script.textContent = "window.ran = 1";
  document.body.append(script);
  document.body.insertAdjacentHTML("beforeend", '<img src="x" onerror="window.ran = 2"><b style="color: red">b</b>');
})()"""


def test_pages_keep_the_policy_and_what_is_injected_does_not_run(browser: Browser, live_server: Any) -> None:
    rollout, stable = with_stable()
    noting = browser.send("Page.addScriptToEvaluateOnNewDocument", source=NOTE)["identifier"]
    someone = manager()
    slug, number = stable.model.slug, stable.number
    for name, arguments in (
        ("overview", ()), ("model", (slug,)), ("release", (slug, number)), ("release_rollout", (slug, rollout.candidate.number)),
        ("events", ()), ("webhooks", ()), ("rollout", (rollout.pk,)),
    ):  # fmt: skip
        see(browser, live_server, someone, name, *arguments)
        assert browser.js("stopped") == [], name
    browser.wait_for("performance.getEntriesByType('resource').some((one) => one.name.includes('/_live/'))")
    assert browser.js("stopped") == [], "the live fragment"
    browser.js(INJECT)
    browser.wait_for("stopped.length >= 3")
    assert browser.js("window.ran") is None
    assert reverse("rollout", args=[rollout.pk]) in browser.js("location.pathname")
    browser.send("Page.removeScriptToEvaluateOnNewDocument", identifier=noting)
