"""A model's objectives and policies: read, changed by a form that shows what would change."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import patch_vary_headers

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may, require
from audit.queries import visible_events
from audit.queries.event_search import about_model
from ledger.core.errors import DomainError, Refused
from ledger.models import Event
from registry.actions import change_model
from registry.core.schema import Problem
from registry.hooks.policy_validators import refuse_change
from registry.models import ServedModel
from registry.queries.model_changes import POLICIES, proposed_change
from rollouts.core.policy_schema import stored_policy
from validators.core.explain import Demand
from validators.queries.model_policy import policy_of as gate_policy_of
from validators.queries.policy_explained import demands_of
from web.pages.events import cursor_page
from web.pages.forms import act, version_in
from web.pages.model_frame import frame, readable_model
from web.pages.policy_form import CHOICES
from web.pages.policy_words import Asked, base_of, differences, from_text, from_words, groups_of, text_of

#: Changes that a confirmation repeats and a row of the history tells; the table and the event have all of them.
MOST_REPEATED, MOST_OF_A_ROW = 12, 20


@login_required
def policies(request: HttpRequest, slug: str) -> HttpResponse:
    """The page; with fields in the address a preview that creates nothing, to htmx that alone; and what its form sends."""
    served = readable_model(request, slug)
    if request.method == "POST":
        return _sent(request, served)
    asked = None
    if "version" in request.GET and _may_edit(request, served):
        asked = from_words(_typed(request), _settings(served))
    if request.headers.get("HX-Request"):
        answer = render(request, "registry/_policy_preview.html", _preview(request, served, asked))
    else:
        answer = _page(request, served, asked)
    patch_vary_headers(answer, ["HX-Request"])
    return answer


def _sent(request: HttpRequest, served: ServedModel) -> HttpResponse:
    """The review of a text or, after confirmation, the change. A refused form keeps the person's input."""
    actor, slug, text = actor_of(request), served.slug, request.POST.get("settings", "")
    require(actor, Verb.EDIT_MODEL, served.team.slug, slug)
    asked = from_text(text, _settings(served))
    if asked.problems or not request.POST.get("confirmed"):
        return _page(request, served, asked, status=422 if asked.problems else 200)

    def refused() -> HttpResponse:
        now = readable_model(request, slug)  # another person may have changed it
        return _page(request, now, from_text(text, _settings(now)))

    return act(
        request,
        lambda: change_model(
            actor=actor, model=served, expected_version=version_in(request), changes=dict(asked.settings)
        ),
        done="Kept. What begins from now on follows it.",
        then=reverse("model_policies", args=[slug]),
        page=refused,
    )


def _may_edit(request: HttpRequest, served: ServedModel) -> bool:
    return may(actor_of(request), Verb.EDIT_MODEL, served.team.slug, served.slug)


def _settings(served: ServedModel) -> dict[str, Any]:
    return {name: getattr(served, name) for name in POLICIES}


def _typed(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "") for name in request.GET} if request.method != "POST" else {}


def _page(request: HttpRequest, served: ServedModel, asked: Asked | None, status: int = 200) -> HttpResponse:
    typed = _typed(request) if asked else {}
    settings = asked.settings if asked and not asked.problems else _settings(served)
    shown = _settings(served) if any(not isinstance(settings[name], dict) for name in POLICIES) else settings
    sent = request.POST.get("settings", "") if request.method == "POST" else ""
    base = base_of(shown["rollout_policy"], typed)
    facts = {
        "groups": groups_of(shown, typed),
        "base": base,
        "presets": dict.fromkeys([*CHOICES, base]),
        "text": sent or text_of(shown),
        "in_full": _in_full(served),
        "demands": _demands(served),
        "history": _history(request, served),
        **_preview(request, served, asked),
    }
    return render(request, "registry/model_policies.html", {**frame(served, "model_policies"), **facts}, status=status)


# --- the preview ------------------------------------------------------------------------------------------------------


def _preview(request: HttpRequest, served: ServedModel, asked: Asked | None) -> dict[str, Any]:
    """What would change, and what speaks against it."""
    proposed = proposed_change(served, asked.settings if asked else {})
    problems = [*(asked.problems if asked else ()), *proposed.problems]
    if not problems:
        try:
            refuse_change(actor_of(request), served, proposed.after)
        except Refused as error:
            problems = [Problem(str(error.facts.get("field", "")), error.message, "")]
    changes = differences(proposed.before, proposed.after)
    was = request.GET.get("version", "")
    return {
        "model": served,
        "may_edit": _may_edit(request, served),
        "asked": asked,
        "problems": problems,
        "changes": changes,
        "is_late": asked is not None and request.method != "POST" and was != str(served.version),
        "says": _says(served, changes) if changes and not problems else "",
        "hidden": [("confirmed", "yes"), ("settings", json.dumps(proposed.after, default=str))] if asked else [],
    }


def _says(served: ServedModel, changes: list[Any]) -> str:
    """What keeping it will do, for the confirmation."""
    told = [f"{one.field}: {_cut(one.old)} → {_cut(one.new)}" for one in changes[:MOST_REPEATED]]
    more = f"; and {len(changes) - MOST_REPEATED} more, listed on the page" if len(changes) > MOST_REPEATED else ""
    kept = ", ".join(f"{label.lower()} {digest[:19]}…" for label, digest, _ in _in_full(served))
    return (
        f"Of {served.slug}: {'; '.join(told)}{more}. Gate runs and rollouts that have begun keep the policies that they began "
        f"under ({kept or 'as they were read then'}); what begins from now on follows the new ones."
    )


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:99]}…"


def _in_full(served: ServedModel) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, digest, document) of each readable policy, with every default filled in."""
    found = []
    for label, read in (
        ("Gate policy", lambda: gate_policy_of(served)),
        ("Rollout policy", lambda: stored_policy(served.rollout_policy, served.objectives)),
    ):
        try:
            policy: Any = read()
        except DomainError:
            continue
        found.append((label, policy.digest, policy.document))
    return found


def _demands(served: ServedModel) -> list[Demand]:
    """The gate policy's requirements now; empty if it cannot be read."""
    try:
        return demands_of(served)[1]
    except DomainError:
        return []


def _history(request: HttpRequest, served: ServedModel) -> dict[str, Any]:
    """Who changed objectives or policies, when, and from what to what; the newest first."""
    is_ours = Q(verb="model.changed", facts__after__has_any_keys=list(POLICIES)) | Q(verb="model.created")
    page = cursor_page(request, about_model(visible_events(actor_of(request)), served).filter(is_ours))
    return {"page": page, "rows": [(event, *_changes_of(event)) for event in page.rows]}


def _changes_of(event: Event) -> tuple[list[Any], int]:
    """(some of the changes, how many more there are)."""
    changes = differences(event.facts.get("before", {}), event.facts.get("after", {}))
    return changes[:MOST_OF_A_ROW], max(0, len(changes) - MOST_OF_A_ROW)
