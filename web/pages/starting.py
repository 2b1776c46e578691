"""Starting a rollout: the form, its preview, and the start itself."""

from __future__ import annotations

import json
import re
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Actor, Verb, may, require
from accounts.core.quantities import duration_text, weight_text
from ledger.core.errors import DomainError, Invalid
from registry.models import Release, ServedModel
from rollouts.actions import find_or_start
from rollouts.actions.preview import preview_rollout
from serving.environments.queries.inventory import all_environments
from serving.models import Environment
from web.pages.forms import LONGEST_REASON
from web.pages.policy_form import CHOICES, JSON, LONGEST_IN_ADDRESS, NAMES, fields_of, policy_in
from web.pages.release_frame import readable_release
from web.plots import PlannedStep, staircase

#: The most requests a second that somebody may suppose.
MOST_RATE = 1e6
DEFAULT_ENVIRONMENT = "production"


@login_required
def starting(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """The form, and with an environment in the address a preview of the start: an address to share. Creates nothing."""
    release = _startable(request, slug, number)
    if not any(request.GET.get(name) for name in ("environment", "policy", "preset")):
        return _page(request, release, {})
    if len(request.META.get("QUERY_STRING", "")) > 4 * LONGEST_IN_ADDRESS:
        error = Invalid("policy_too_long", "This policy is too long for an address. Preview it from the form.")
        return _page(request, release, {"error": error}, status=error.status)
    return _previewed(request, release, request.GET)


@login_required
def preview(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """As `starting`, for a policy that is too long for an address."""
    return _previewed(request, _startable(request, slug, number), request.POST)


def _previewed(request: HttpRequest, release: Release, form: QueryDict) -> HttpResponse:
    places = _places()
    try:
        _reason(form)
        rate = rate_in(form)
        found = preview_rollout(
            actor=actor_of(request),
            candidate=release,
            rate_per_s=rate,
            again=True,
            **_asked_for(form, release.model, places),
        )
    except DomainError as error:
        return _page(request, release, {"error": error}, status=error.status, places=places)
    facts = {"preview": _with_plots(_with_grid(found)), "says": _says(found)}
    return _page(request, release, facts, places=places)


@login_required
def start(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """The rollout, and its page; when it is refused, the form as it was sent with the reason."""
    release = _startable(request, slug, number)
    try:
        rollout, is_new = find_or_start(
            actor=actor_of(request),
            candidate=release,
            again=True,  # the preview above the button shows what happened to this release before
            reason=_reason(request.POST),
            **_asked_for(request.POST, release.model, _places()),
        )
    except DomainError as error:
        return _page(request, release, {"error": error}, status=error.status)
    said = f"The rollout of {release.name} is requested."
    messages.success(request, said if is_new else f"Rollout {rollout.pk} of {release.name} is active already.")
    return redirect(reverse("rollout", args=[rollout.pk]))


def _startable(request: HttpRequest, slug: str, number: int) -> Release:
    release = readable_release(actor_of(request), slug, number)
    require(actor_of(request), Verb.START_ROLLOUT, release.model.team.slug, release.model.slug)
    return release


def _places() -> list[Environment]:
    """The environments that a rollout may be for."""
    return [one for one in all_environments() if one.is_routed]


def _page(
    request: HttpRequest,
    release: Release,
    found: dict[str, Any],
    status: int = 200,
    places: list[Environment] | None = None,
) -> HttpResponse:
    form = request.POST if request.method == "POST" else request.GET
    document = found["preview"]["policy"] if "preview" in found else None
    given = {
        name: form.get(name, "")
        for name in ("environment", "policy", "policy_json", "reason", "rate", "digest", "base")
    }
    if not given["policy"]:
        given["policy"] = form.get("preset", "")
    if given["policy"] != JSON and document is not None:
        given["policy_json"] = json.dumps(document, indent=2)
    given["base"] = given["base"] or (document or {}).get("preset", "standard")
    if not given["environment"]:
        given["environment"] = DEFAULT_ENVIRONMENT
    facts = {
        "release": release,
        "environments": _places() if places is None else places,
        "presets": CHOICES,
        "may_choose": may_choose_policy(actor_of(request), release.model),
        "given": given,
        "fields": fields_of(form, document),
        "repeated": [(name, form.get(name, "")) for name in ("environment", "policy", "preset", "policy_json", "digest", *NAMES)
                     if form.get(name)],
        **found,
    }  # fmt: skip
    return render(request, "rollouts/start.html", facts, status=status)


def may_choose_policy(actor: Actor, model: ServedModel) -> bool:
    """Whether the person may start rollouts under another policy than the model's own."""
    return any(may(actor, verb, model.team.slug, model.slug) for verb in (Verb.EDIT_MODEL, Verb.APPROVE_ROLLOUT))


def _asked_for(form: QueryDict, model: ServedModel, places: list[Environment]) -> dict[str, Any]:
    """The environment and the policy that the form names. Raises Invalid."""
    asked = form.get("environment", DEFAULT_ENVIRONMENT)
    environment = next((one for one in places if one.slug == asked), None)
    if environment is None:
        raise Invalid("no_such_environment", "Choose the environment to roll out to.")
    return {"environment": environment, "policy": policy_in(form, model)}


def rate_in(form: QueryDict) -> float | None:
    """The form's requests per second, or None to use the measured rate. Raises Invalid."""
    text = form.get("rate", "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,4})?", text) or not 0 < float(text) <= MOST_RATE:
        raise Invalid("rate_invalid", "Write the rate as requests a second, such as 8 or 0.5, or leave it empty.")
    return float(text)


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


def _with_plots(found: dict[str, Any]) -> dict[str, Any]:
    """The preview with its plan as a staircase."""
    served = [one for one in found["stages"] if one["weight_bp"]]
    steps = [
        PlannedStep(one["name"], one["weight_bp"] / 10_000, one["expected_s"], one["min_s"], one["approvals"])
        for one in served
    ]
    plan = staircase("The steps over expected time", _takes(found), steps, name="plan")
    return {**found, "plan": plan}


def _takes(found: dict[str, Any]) -> str:
    if found["total_s"] is None:
        return "Duration unknown without traffic; minimum times are shown."
    return f"About {duration_text(found['total_s'])} for a healthy release, approvals not counted."


def _says(found: dict[str, Any]) -> str:
    """The start's effects, for the confirmation."""
    weights = " → ".join(weight_text(one["weight_bp"]) for one in found["stages"] if one["weight_bp"])
    over = f" takes traffic from {found['stable']}" if found["stable"] else " takes all traffic as the first release"
    takes = f", about {duration_text(found['total_s'])}" if found["total_s"] is not None else ""
    waits = [f"{one['needed']} before {one['stage']}" for one in found["approvals"]]
    asks = f" It waits for approvals: {', '.join(waits)}." if waits else ""
    told = {one["code"]: one["message"] for one in found["warnings"]}
    back = f" It goes back to {found['stable']} by itself once it is proven worse." if found["stable"] else ""
    if found["stable"] and not found["rollback_target"]:
        back = f" {told.get('no_capacity_for_rollback', '')}"
    before = " ".join(told[code] for code in ("rolled_back_before", "fewer_approvals") if code in told)
    return f"In {found['environment']}, {found['candidate']}{over}: {weights}{takes}.{asks}{back} {before}".strip()
