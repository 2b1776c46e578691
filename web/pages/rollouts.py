"""Rollouts: the list, and one rollout live, with the verbs that people have."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api import actor_of
from accounts.core.access import Verb, may
from accounts.core.errors import Invalid, NotFound
from rollouts import actions
from rollouts.core.lifecycle import FINAL, RolloutState
from rollouts.models import Rollout
from rollouts.queries import live_view
from web.pages.forms import act, reason_in, version_in
from web.pages.overview import visible_models

ROLLOUTS_PER_PAGE = 25

#: What each button calls, what it takes, and in which states it makes sense.
S = RolloutState
BUTTONS: tuple[tuple[str, str, Verb, frozenset[RolloutState]], ...] = (
    ("approve", "Approve", Verb.APPROVE_ROLLOUT, frozenset({S.AWAITING_APPROVAL})),
    ("reject", "Reject", Verb.APPROVE_ROLLOUT, frozenset({S.AWAITING_APPROVAL})),
    ("pause", "Pause", Verb.PAUSE_ROLLOUT, frozenset({S.SHIFTING, S.BAKING})),
    ("resume", "Resume", Verb.RESUME_ROLLOUT, frozenset({S.PAUSED})),
    ("advance", "Skip the wait", Verb.ADVANCE_ROLLOUT, frozenset({S.SHIFTING})),
    ("cancel", "Cancel", Verb.ABORT_ROLLOUT, frozenset({S.REQUESTED, S.AWAITING_APPROVAL, S.PREPARING})),
    ("abort", "Roll back", Verb.ROLL_BACK, frozenset({S.SHIFTING, S.PAUSED, S.BAKING, S.STUCK})),
)


def _rollout(request: HttpRequest, pk: int) -> Rollout:
    found = (
        Rollout.objects.select_related("model__team", "environment", "candidate", "stable", "report")
        .filter(pk=pk)
        .first()
    )
    if found is None or not may(actor_of(request), Verb.READ, found.model.team.slug):
        raise NotFound("rollout_unknown", f"There is no rollout {pk} that you may see.")
    return found


def _facts(request: HttpRequest, rollout: Rollout) -> dict[str, Any]:
    actor = actor_of(request)
    team = rollout.model.team.slug
    buttons = [
        (name, label) for name, label, verb, states in BUTTONS if rollout.state in states and may(actor, verb, team)
    ]
    return {"rollout": rollout, "live": live_view(rollout), "buttons": buttons, "is_final": rollout.state in FINAL}


@login_required
def rollouts(request: HttpRequest) -> HttpResponse:
    rows = Rollout.objects.filter(model__in=visible_models(request)).select_related(
        "model", "environment", "candidate", "stable"
    )
    page = Paginator(rows, ROLLOUTS_PER_PAGE).get_page(request.GET.get("page"))
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
            raise Invalid("verb_unknown", f"A rollout has no verb “{verb}”.")
        getattr(actions, verb)(
            actor=actor, rollout=found, expected_version=version_in(request), reason=reason_in(request)
        )

    return act(request, call, done=f"Done: {verb}.", then=reverse("rollout", args=[pk]))
