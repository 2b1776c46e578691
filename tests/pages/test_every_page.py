"""Every page of the product in a real browser: what axe finds, what does not fit a small screen, what is too small to press."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.urls import URLPattern, reverse
from playwright.sync_api import Page

from accounts.models import Issuer
from ledger.models import Event
from registry.core.lifecycle import ReleaseState
from tests.support.worlds.alarm_setup import burning, counted, paged
from tests.support.worlds.factories import make_node, make_release, make_server, make_user
from tests.support.worlds.rollout_setup import promoted, report_for, slow_request, with_stable
from tests.support.worlds.series_setup import kept
from tests.support.worlds.webhook_setup import subscribe
from web.urls import urlpatterns

pytestmark = [
    pytest.mark.real("chromium"),
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(1200),
]
AXE = (Path(__file__).resolve().parents[1] / "vendor" / "axe.min.js").read_text()
TAGS = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
#: What is no page of its own, and why it is left out.
NO_PAGES = {
    "overview_live", "model_live", "gates_live", "rollout_live", "rollout_plots", "approvals_live",  # parts of pages
    "alarms_live", "alarm_live", "gate_run_live", "gate_run_evidence", "search_fragment", "main_links", "fleet_shown", "model_releases",
    "release_gates_live", "incidents_live", "incident_live",
    "sign_out", "looks", "audit_jsonl", "audit_csv",  # answers without a page
    "issuer_sign_in", "issuer_return",  # ways to elsewhere
}  # fmt: skip
#: As `posted` of `web.pages.forms` calls its views: addresses of forms, which lead to a page of this list.
FORM = "answer"


@dataclass(frozen=True)
class World:
    """What addresses need."""

    rollout: Any
    ended: Any
    release: Any
    gate_run: Any
    webhook: Any
    issuer: Any
    person: Any
    alarm: Any
    incident: Any

    def arguments(self) -> dict[str, dict[str, Any]]:
        """By page: what its address says."""
        release = {"slug": self.release.model.slug, "number": self.release.number}
        return {
            "error": {"code": "stale"},
            "release_file": {**release, "path": "artifact/model.onnx"},
            "gate_run": {"pk": self.gate_run.pk},
            "webhook": {"pk": self.webhook.pk},
            "issuer": {"pk": self.issuer.pk},
            "settings_environment": {"slug": self.rollout.environment.slug},
            "person": {"username": self.person.username},
            "audit_event": {"seq": Event.objects.latest("seq").seq},
            "release": release,
            "model": {"slug": release["slug"]},
            "rollout": {"pk": self.rollout.pk},
            "alarm": {"pk": self.alarm.pk},
            "incident": {"pk": self.incident.pk},
            "post_mortem": {"pk": self.ended.pk},
        }


def made() -> World:
    rollout, _ = with_stable(approvals={"bake": 1})
    make_release(rollout.model, state=ReleaseState.DRAFT)
    make_node()
    make_server()
    report = report_for(rollout.candidate)
    issuer = Issuer.objects.create(**ISSUER)
    hook = subscribe("https://hooks.example/x", team="search", verbs=["rollout.*"])
    ended, _ = promoted()
    for one in (rollout, ended):
        slow_request(one)
    counted(ended.model, bad=48, attempts=1200)
    kept(rollout.environment, [rollout.stable, rollout.candidate])
    alarm = burning(ended.model)
    ann = make_user("ann", team="search")
    return World(rollout, ended, rollout.candidate, report.gate_run, hook, issuer, ann, alarm, paged())


ISSUER: dict[str, Any] = {
    "title": "Company", "url": "https://id.example", "kind": "other", "is_for_people": True, "client_id": "sluicegate",
    "created_by": "root",
}  # fmt: skip


def pages() -> Iterator[URLPattern]:
    """Every address of the product's that is a page."""
    for pattern in urlpatterns:
        is_form = getattr(pattern.callback, "__name__", "") == FORM
        if pattern.name is not None and not is_form and pattern.name not in NO_PAGES:
            yield pattern


def addresses(world: World | None) -> Iterator[str]:
    """Of each page: with what the world has; without a world, those that need nothing."""
    for pattern in pages():
        named = set(pattern.pattern.converters)
        if not named:
            yield reverse(str(pattern.name))
        elif world is not None:
            known = world.arguments()
            name = str(pattern.name)
            by_prefix = (known[one] for one in ("release", "model", "rollout") if name.startswith(f"{one}_"))
            like = known[name] if name in known else next(by_prefix, None)
            assert like is not None, f"nothing here says what the address of {name} needs: add it to World.arguments"
            yield reverse(name, kwargs=like)


#: What is wider than the screen, and the controls that are too small to press; a link within a sentence may be (WCAG 2.5.8).
LOOK = """() => {
  const root = document.documentElement;
  const wide = root.scrollWidth > root.clientWidth + 1
    ? [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > root.clientWidth + 1
        && !one.closest(".scroll, pre, .tabs")).slice(0, 3).map((one) => one.outerHTML.slice(0, 120)) : [];
  if (root.scrollWidth > root.clientWidth + 1 && !wide.length) wide.push("the page itself");
  const small = [...document.querySelectorAll("button, select, input:not([type=hidden]), textarea, summary")].filter((one) => {
    const box = one.getBoundingClientRect();
    const inLabel = one.closest("label") && (one.type === "checkbox" || one.type === "radio");
    return one.checkVisibility() && box.width && !inLabel && one.type !== "checkbox" && one.type !== "radio"
      && (box.height < 23.5 || box.width < 23.5);
  }).map((one) => one.outerHTML.slice(0, 120));
  return { wide, small };
}"""
#: Of what is right, axe need not say where it is (`resultTypes`): that takes a good part of its time.
FIND = """async ([tags, only]) => {
  const asked = only ? { type: "rule", values: [only] } : { type: "tag", values: tags };
  const found = await axe.run(document, { runOnly: asked, resultTypes: ["violations"] });
  return found.violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 140)).join(" | ")}`);
}"""


def faults(page: Page, address: str) -> list[str]:
    """What is wrong with the page there."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    answer = page.goto(address)
    assert answer is not None
    if answer.status != 200:
        return [f"{address}: {answer.status}"]
    page.evaluate(AXE)
    found = page.evaluate(FIND, [TAGS, ""])
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    found += [f"dark: {one}" for one in page.evaluate(FIND, [TAGS, "color-contrast"])]
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        looked = page.evaluate(LOOK)
        if width == 390:  # what scrolls only where the screen is small
            found += [f"{width} px: {one}" for one in page.evaluate(FIND, [TAGS, "scrollable-region-focusable"])]
        found += [f"wider than {width} px: {one}" for one in looked["wide"]]
        found += [f"smaller than 24 px: {one}" for one in looked["small"]] if width == 320 else []
    return [f"{address}: {one}" for one in dict.fromkeys(found)]


@pytest.mark.parametrize("is_full", [False, True], ids=["empty", "full"])
def test_every_page_can_be_read_and_used_by_everybody(page_of: Callable[..., Page], is_full: bool) -> None:
    world = made() if is_full else None
    page = page_of(make_user("root", is_admin=True))
    found = [fault for address in addresses(world) for fault in faults(page, address)]
    assert found == [], "\n".join(found)


def test_the_sign_in_page_too(page_of: Callable[..., Page]) -> None:
    assert faults(page_of(), reverse("sign_in")) == []
