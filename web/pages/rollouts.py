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
from rollouts.core.lifecycle import FINAL, LIVE, WITHOUT_TRAFFIC, RolloutState
from rollouts.models import Rollout
from rollouts.queries import get_rollout, view_of
from rollouts.queries.approvals import excluded_from
from rollouts.queries.replay import replayed
from rollouts.queries.rollouts import rollouts_of
from web.pages.forms import act, reason_in, refused, version_in
from web.pages.overview import visible_models
from web.pages.starting import CHOICES

ROLLOUTS_PER_PAGE = 25

#: What each button calls, what it takes, and in which states it makes sense.
S = RolloutState
_FORWARD = frozenset({S.SHADOWING, S.SHIFTING, S.BAKING})
BUTTONS: tuple[tuple[str, str, Verb, frozenset[RolloutState]], ...] = (
    ("approve", "Approve", Verb.APPROVE_ROLLOUT, WITHOUT_TRAFFIC | LIVE),
    ("reject", "Reject", Verb.APPROVE_ROLLOUT, LIVE | {S.AWAITING_APPROVAL}),
    ("pause", "Pause", Verb.PAUSE_ROLLOUT, _FORWARD),
    ("resume", "Resume", Verb.RESUME_ROLLOUT, frozenset({S.PAUSED})),
    ("advance", "Skip the wait", Verb.ADVANCE_ROLLOUT, _FORWARD - {S.BAKING}),
    ("promote_now", "Promote now", Verb.PROMOTE_NOW, _FORWARD),
    ("cancel", "Cancel", Verb.ABORT_ROLLOUT, WITHOUT_TRAFFIC),
    ("abort", "Roll back", Verb.ROLL_BACK, LIVE | {S.STUCK}),
)
#: Releases that a rollout without traffic may be superseded by.
NEWEST = 20


def _rollout(request: HttpRequest, pk: int) -> Rollout:
    return get_rollout(actor_of(request), pk)


def _facts(request: HttpRequest, rollout: Rollout) -> dict[str, Any]:
    actor, live = actor_of(request), view_of(rollout)
    return {
        "rollout": rollout,
        "live": live,
        "buttons": _buttons(actor, rollout, live),
        "is_final": rollout.state in FINAL,
        "may_shut": may(actor, Verb.ROLL_BACK, rollout.model.team.slug),
        "others": _others(actor, rollout),
    }


def _buttons(actor: Actor, rollout: Rollout, live: dict[str, Any]) -> list[tuple[str, str]]:
    """(verb, label) of what the person may do now."""
    found = []
    gated = [one for one in live["approval_stages"] if one["is_ahead"]]
    stage = next((one for one in gated if one["stage"] == live["next_approval"]), None)
    for name, label, verb, states in BUTTONS:
        if rollout.state not in states or not may(actor, verb, rollout.model.team.slug):
            continue
        if name == "approve":
            if stage is None or actor.name in stage["by"] or actor.user_id in excluded_from(rollout):
                continue
            label = f"Approve {stage['stage']}"
        if name == "abort":
            label = f"Roll back to {rollout.stable.name}" if rollout.stable else "End the rollout"
        if name == "reject" and rollout.state in LIVE and not gated:
            continue
        if name == "promote_now" and rollout.promote_now:
            continue
        found.append((name, label))
    return found


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


@login_required
def rollout_live(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "rollouts/_live.html", _facts(request, _rollout(request, pk)))


@login_required
def act_on(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    found = _rollout(request, pk)
    actor = actor_of(request)

    def call() -> None:
        if verb not in {name for name, *_ in BUTTONS}:
            raise Invalid("no_such_verb", f"A rollout has no verb “{verb}”.")
        more = {"stage": request.POST.get("stage") or None} if verb == "approve" else {}
        getattr(actions, verb)(
            actor=actor, rollout=found, expected_version=version_in(request), reason=reason_in(request), **more
        )

    then = reverse("rollout", args=[pk])
    return act(request, call, done=f"Done: {verb.replace('_', ' ')}.", then=then, page=lambda: rollout(request, pk))


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
