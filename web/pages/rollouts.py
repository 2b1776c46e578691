"""Rollouts: the list, and one rollout live, with the verbs that people have."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Actor, Verb, may
from ledger.core.errors import DomainError, Invalid
from registry.models import Release
from registry.queries import get_release, newest_releases
from rollouts import actions
from rollouts.core.lifecycle import FINAL, WITHOUT_TRAFFIC
from rollouts.models import Rollout
from rollouts.queries import get_rollout, view_of
from rollouts.queries.replay import replayed
from rollouts.queries.rollouts import rollouts_of
from rollouts.queries.undo_window import is_closed
from web.pages.forms import NO_REASON, optional_reason_in, reason_in, refused, version_in
from web.pages.overview import visible_models
from web.pages.rollout_verbs import OPENING, SHUTTING, opening_buttons, shutting_buttons
from web.pages.session import live
from web.pages.starting import CHOICES

ROLLOUTS_PER_PAGE = 25
#: Releases that a rollout without traffic may be superseded by.
NEWEST = 20


def _rollout(request: HttpRequest, pk: int) -> Rollout:
    return get_rollout(actor_of(request), pk)


def _facts(request: HttpRequest, rollout: Rollout) -> dict[str, Any]:
    actor, live = actor_of(request), view_of(rollout)
    is_final = rollout.state in FINAL
    return {
        "rollout": rollout,
        "live": live,
        "is_final": is_final,
        "is_polled": not is_final or live["undo_window"] is not None,
        "shutting": [] if is_final else shutting_buttons(actor, rollout),
        "opening": [] if is_final else opening_buttons(actor, rollout, live),
        "may_shut": may(actor, Verb.ROLL_BACK, rollout.model.team.slug),
        "is_undo_closed": is_closed(rollout),
        "others": _others(actor, rollout),
        "pressed": _pressed(request),
    }


def _pressed(request: HttpRequest) -> str:
    """Which button sent the form that is shown again, so that what was typed stands where it was typed."""
    match = request.resolver_match
    return match.kwargs.get("verb", "supersede") if request.method == "POST" and match is not None else ""


def _others(actor: Actor, rollout: Rollout) -> list[Release]:
    """The releases that may take this rollout's place; none once it has traffic."""
    if rollout.state not in WITHOUT_TRAFFIC or not may(actor, Verb.SUPERSEDE_ROLLOUT, rollout.model.team.slug):
        return []
    excluded = {rollout.candidate_id, rollout.stable_id}
    return [one for one in newest_releases(rollout.model, NEWEST) if one.pk not in excluded and one.state == "sealed"]


@login_required
def rollouts(request: HttpRequest) -> HttpResponse:
    page = Paginator(rollouts_of(visible_models(request)), ROLLOUTS_PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "rollouts/rollouts.html", {"page": page})


@login_required
def rollout(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "rollouts/rollout.html", _facts(request, _rollout(request, pk)))


@live
def rollout_live(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "rollouts/_live.html", {**_facts(request, _rollout(request, pk)), "is_fragment": True})


@login_required
def act_on(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    found = _rollout(request, pk)
    actor = actor_of(request)
    try:
        if verb in SHUTTING:
            reason = optional_reason_in(request) or NO_REASON
            done = SHUTTING[verb](actor=actor, rollout=found, reason=reason)
        elif verb in OPENING:
            more = {"stage": request.POST.get("stage") or None} if verb == "approve" else {}
            version, reason = version_in(request), reason_in(request)
            done = OPENING[verb](actor=actor, rollout=found, expected_version=version, reason=reason, **more)
        else:
            raise Invalid("no_such_verb", f"A rollout has no verb “{verb}”.")
    except DomainError as error:
        return refused(request, error, lambda: rollout(request, pk))
    messages.success(request, f"Done. The rollout is {done.outcome.replace('_', ' ')} now.")
    return redirect(reverse("rollout", args=[pk]))


@login_required
def supersede(request: HttpRequest, pk: int) -> HttpResponse:
    """The new rollout's page; the old one's when it is refused."""
    found = _rollout(request, pk)
    try:
        new = actions.supersede(
            actor=actor_of(request),
            rollout=found,
            expected_version=version_in(request),
            candidate=get_release(found.model.slug, request.POST.get("candidate", "")),
            reason=reason_in(request),
        )
    except DomainError as error:
        return refused(request, error, lambda: rollout(request, pk))
    messages.success(request, f"{new.candidate.name} takes the place of {found.candidate.name}.")
    return redirect(reverse("rollout", args=[new.pk]))


@login_required
def replay(request: HttpRequest, pk: int) -> HttpResponse:
    """What another policy would have decided at each tick, beside what happened."""
    found = _rollout(request, pk)
    preset = request.GET.get("preset", "")
    facts: dict[str, Any] = {"rollout": found, "presets": CHOICES, "preset": preset}
    try:
        facts["replayed"] = replayed(found, {"preset": preset} if preset else None)
    except DomainError as error:
        facts["error"] = error
    return render(request, "rollouts/replay.html", facts)
