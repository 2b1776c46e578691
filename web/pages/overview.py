"""The overview page: pending approvals, active rollouts, live releases and recent decisions."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.api.requests import actor_of
from registry.models import ServedModel
from registry.queries import visible_models as readable_models
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.queries.rollouts import rollouts_of
from serving.core.containment import of_facts, sentence_of
from serving.queries import environments, nodes
from web.pages.session import live


def visible_models(request: HttpRequest) -> list[ServedModel]:
    """The models whose team the person may read."""
    return list(readable_models(actor_of(request)))


def _facts(request: HttpRequest) -> dict[str, Any]:
    models = visible_models(request)
    rollouts = rollouts_of(models)
    active = list(rollouts.filter(state__in=ACTIVE))
    return {
        "models": models,
        "waiting": [r for r in active if r.state == RolloutState.AWAITING_APPROVAL],
        "moving": [r for r in active if r.state != RolloutState.AWAITING_APPROVAL],
        "ended": list(rollouts.exclude(state__in=ACTIVE)[:5]),
        "environments": environments(models).filter(is_routed=True),
        "nodes": [
            {
                "name": node.name,
                "seen_at": node.seen_at,
                "containment": of_facts(node.facts) or "unknown",
                "contained": sentence_of(node.facts),
            }
            for node in nodes()
        ],
    }


@login_required
def overview(request: HttpRequest) -> HttpResponse:
    return render(request, "web/overview.html", _facts(request))


@live
def overview_live(request: HttpRequest) -> HttpResponse:
    return render(request, "web/_overview_live.html", _facts(request))
