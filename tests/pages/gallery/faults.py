"""What goes wrong in front of people: refused forms, what is not there, what one may not see, a release that failed. For pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.urls import reverse
from playwright.sync_api import Page

from tests.pages.gallery.world import Gallery

#: A form of this page's own kind, with its token, sent as a browser sends it; a file field cannot be filled so.
_POST = """([action, fields]) => {
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  const form = Object.assign(document.createElement("form"), { method: "post", action });
  for (const [name, value] of Object.entries({ ...fields, csrfmiddlewaretoken: token }))
    form.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
  document.body.append(form);
  form.submit();
}"""
Step = tuple[str, str, dict[str, str] | None]  # (name of the picture, address, what is posted there)


def steps(world: Gallery) -> Iterator[Step]:
    """(name, address, form or None for a look) of everything that is refused or has failed."""
    of = {"slug": world.release.model.slug, "number": world.release.number}
    rejected = {"slug": world.rejected.model.slug, "number": world.rejected.number}
    long = {"slug": world.long.model.slug, "number": world.long.number}
    looks: list[tuple[str, str, dict[str, Any]]] = [
        ("rollout-taken-back", "rollout", {"pk": world.ended.pk}),
        ("rollout-stuck", "rollout", {"pk": world.stuck.pk}),
        ("rollout-waiting", "rollout", {"pk": world.waiting.pk}),
        ("rollout-of-long-name", "rollout", {"pk": world.long.rollouts.get().pk}),
        ("post-mortem-of-long-name", "post_mortem", {"pk": world.long.rollouts.get().pk}),
        ("replay-of-taken-back", "rollout_replay", {"pk": world.ended.pk}),
        ("gate-run-failed", "gate_run", {"pk": world.failed_run.pk}),
        ("gate-run-running", "gate_run", {"pk": world.running_run.pk}),
        ("gate-run-of-gpus", "gate_run", {"pk": world.watched_run.pk}),
        ("release-rejected", "release", rejected),
        ("release-rejected-rollout", "release_rollout", rejected),
        ("release-rejected-diff", "release_diff", rejected),
        ("model-of-long-name", "model", {"slug": long["slug"]}),
        ("release-of-long-name", "release", long),
        ("error-page", "error", {"code": "golden_set_invalid"}),
        ("model-without-releases", "model", {"slug": "toxicity"}),
        ("upload-without-releases", "model_upload", {"slug": "toxicity"}),
    ]
    yield from ((name, reverse(page, kwargs=kwargs), None) for name, page, kwargs in looks)
    start = reverse("release_rollout", kwargs={"slug": "fraud-score", "number": 1})
    yield "start-preview", f"{start}?environment=production&policy=careful", None
    yield (
        "start-invalid",
        f"{reverse('release_rollout', kwargs=of)}?environment=production&policy=json&json=%7B%22steps%22%3A+3%7D",
        None,
    )
    yield "audit-without-hits", f"{reverse('audit')}?text=nothing-is-called-so", None
    yield "audit-invalid", f"{reverse('audit')}?since=yesterday-ish", None
    yield "history-of-model", f"{reverse('history')}?model=sentiment&environment=production&span=30d", None
    yield "history-invalid", f"{reverse('history')}?at=not-a-time", None
    yield "rollouts-without-hits", f"{reverse('rollouts')}?model=nothing-is-called-so", None
    yield "search-hits", f"{reverse('search')}?q=sent", None
    yield "search-without-hits", f"{reverse('search')}?q=nothing-is-called-so", None
    yield "fleet-fit", f"{reverse('fleet')}?fit={world.release.model.slug}/{world.release.name}", None
    yield "not-found", "/models/nobody-knows-it/", None
    yield "compare", f"{reverse('release_diff', kwargs=of)}?against=r2", None
    yield from _posts(world, of)


def _posts(world: Gallery, of: dict[str, Any]) -> Iterator[Step]:
    yield (
        "new-model-refused",
        reverse("new_model_create"),
        {"from": "fields", "slug": "No Such Slug!", "team": "search", "title": "x"},
    )
    yield "token-refused", reverse("token_create", args=["ada"]), {"name": "", "days": "90000"}
    yield (
        "webhook-refused",
        reverse("webhook_create"),
        {"kind": "webhook", "target": "http://10.0.0.1/hook", "team": "search"},
    )
    yield "person-refused", reverse("person_create"), {"username": "ada", "password": "short"}
    yield "environment-refused", reverse("environment_create"), {"slug": "Not A Slug", "title": ""}
    yield "golden-set-refused", reverse("model_golden_set_add", args=["sentiment"]), {"text": '{"id": 1}\nnot json'}
    yield "alias-refused", reverse("model_alias_move", args=["sentiment"]), {"name": "No!", "release": "r99"}
    yield "policy-refused", reverse("model_policies", args=["sentiment"]), {"rollout_policy": "{", "version": "1"}
    yield (
        "ownership-refused",
        reverse("model_ownership", args=["sentiment"]),
        {"runbook_url": "ftp://x", "version": "1"},
    )
    yield "password-refused", reverse("password"), {"old_password": "wrong", "new_password1": "a", "new_password2": "b"}
    yield "waiver-refused", reverse("release_waive", kwargs=of), {"reason": ""}
    yield "try-token-refused", reverse("token_try"), {"token": "not.a.token"}


def take(page: Page, step: Step) -> None:
    """Leads the page to what the step is about."""
    _, address, form = step
    if form is None:
        page.goto(address)
        return
    page.goto(reverse("account"))
    with page.expect_navigation():
        page.evaluate(_POST, [address, form])
