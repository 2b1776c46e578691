"""Starting a rollout: the form, its preview, and the start itself."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Actor, Verb, may, require
from ledger.core.errors import DomainError, Invalid
from registry.models import Release, ServedModel
from registry.queries import get_release
from rollouts.actions import start_rollout
from rollouts.actions.preview import preview_rollout
from rollouts.core.presets import PRESETS
from serving.queries import environments, find_environment
from web.pages.forms import LONGEST_REASON
from web.pages.models import readable_model

OWN, JSON = "own", "json"
#: The presets that people choose from; `demo` is for showing things fast on one machine.
CHOICES = tuple(name for name in PRESETS if name != "demo")


@login_required
def starting(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """The empty form."""
    return _page(request, _startable(request, slug, number), {})


@login_required
def preview(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """The form as it was sent, with what a start would do. Creates nothing."""
    release = _startable(request, slug, number)
    try:
        _reason(request.POST)
        found = preview_rollout(actor=actor_of(request), candidate=release, **_asked_for(request.POST))
    except DomainError as error:
        return _page(request, release, {"error": error}, status=error.status)
    return _page(request, release, {"preview": _with_grid(found)})


@login_required
def start(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """The rollout, and its page; when it is refused, the form as it was sent with the reason."""
    release = _startable(request, slug, number)
    try:
        rollout = start_rollout(
            actor=actor_of(request), candidate=release, reason=_reason(request.POST), **_asked_for(request.POST)
        )
    except DomainError as error:
        return _page(request, release, {"error": error}, status=error.status)
    messages.success(request, f"The rollout of {release.name} is requested.")
    return redirect(reverse("rollout", args=[rollout.pk]))


def _startable(request: HttpRequest, slug: str, number: int) -> Release:
    readable_model(request, slug)
    release = get_release(slug, number)
    require(actor_of(request), Verb.START_ROLLOUT, release.model.team.slug)
    return release


def _page(request: HttpRequest, release: Release, found: dict[str, Any], status: int = 200) -> HttpResponse:
    facts = {
        "release": release,
        "environments": environments().filter(is_routed=True),
        "presets": CHOICES,
        "may_choose": may_choose_policy(actor_of(request), release.model),
        "given": {name: request.POST.get(name, "") for name in ("environment", "policy", "policy_json", "reason")},
        **found,
    }
    return render(request, "rollouts/start.html", facts, status=status)


def may_choose_policy(actor: Actor, model: ServedModel) -> bool:
    """Whether the person may start rollouts under another policy than the model's own."""
    return any(may(actor, verb, model.team.slug) for verb in (Verb.EDIT_MODEL, Verb.APPROVE_ROLLOUT))


def _asked_for(form: QueryDict) -> dict[str, Any]:
    """The environment and the policy that the form names. Raises Invalid."""
    environment = find_environment(form.get("environment", ""))
    if environment is None or not environment.is_routed:
        raise Invalid("no_such_environment", "Choose the environment to roll out to.")
    return {"environment": environment, "policy": _policy(form)}


def _policy(form: QueryDict) -> dict[str, Any] | None:
    choice = form.get("policy", OWN) or OWN
    if choice == OWN:
        return None
    if choice != JSON:
        return {"preset": choice}
    try:
        policy = json.loads(form.get("policy_json", ""))
    except ValueError as error:
        raise Invalid("policy_not_json", f"The policy is not JSON: {error}. Correct it, or choose a preset.") from None
    if not isinstance(policy, dict):
        raise Invalid("policy_not_json", 'Write the policy as one JSON object, such as {"preset": "fast"}.')
    return policy


def _reason(form: QueryDict) -> str:
    reason = form.get("reason", "").strip()
    if len(reason) > LONGEST_REASON:
        raise Invalid("reason_too_long", f"The reason has {len(reason)} characters; {LONGEST_REASON} are the most.")
    return reason


def _with_grid(found: dict[str, Any]) -> dict[str, Any]:
    """The preview with its detections as rows of a table: a row for each share of failures, a column for each stage."""
    rows: dict[float, list[dict[str, Any]]] = {}
    for one in found["detect"]:
        rows.setdefault(one["fail_frac"], []).append(one)
    return {**found, "grid": list(rows.items())}
