"""The overview page: pending approvals, active rollouts, live releases and recent decisions."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from registry.models import ServedModel
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.models import Rollout
from serving.models import Environment, Route


def visible_models(request: HttpRequest) -> list[ServedModel]:
    """The models whose team the person may read."""
    actor = actor_of(request)
    return [m for m in ServedModel.objects.select_related("team") if may(actor, Verb.READ, m.team.slug)]


def _facts(request: HttpRequest) -> dict[str, Any]:
    models = visible_models(request)
    rollouts = Rollout.objects.filter(model__in=models).select_related("model", "environment", "candidate", "stable")
    routes = Route.objects.filter(model__in=models).select_related("model", "stable", "candidate")
    active = list(rollouts.filter(state__in=ACTIVE))
    return {
        "models": models,
        "waiting": [r for r in active if r.state == RolloutState.AWAITING_APPROVAL],
        "moving": [r for r in active if r.state != RolloutState.AWAITING_APPROVAL],
        "ended": list(rollouts.exclude(state__in=ACTIVE)[:5]),
        "environments": Environment.objects.filter(is_routed=True).prefetch_related(
            Prefetch("routes", queryset=routes), "gateways"
        ),
    }


@login_required
def overview(request: HttpRequest) -> HttpResponse:
    return render(request, "web/overview.html", _facts(request))


@login_required
def overview_live(request: HttpRequest) -> HttpResponse:
    return render(request, "web/_overview_live.html", _facts(request))
