"""The list of models, and one model: what is live where, and its releases."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Page, Paginator
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from ledger.core.errors import Invalid
from registry.models import Release, ServedModel
from registry.queries import releases_of, visible_model
from rollouts import actions
from rollouts.queries.rolled_back import rolled_back
from rollouts.queries.rollouts import rollouts_of
from rollouts.queries.undo_window import is_closed, is_open, last_promoted
from serving.models import Route
from serving.queries import find_environment
from serving.queries.routes import all_routes
from validators.queries import newest_gate_runs
from web.pages.forms import NO_REASON, act, optional_reason_in
from web.pages.overview import visible_models
from web.pages.session import live

RELEASES_PER_PAGE = 25


@login_required
def models(request: HttpRequest) -> HttpResponse:
    wanted = request.GET.get("filter", "").strip().lower()
    rows = [m for m in visible_models(request) if wanted in m.slug.lower() or wanted in m.team.slug.lower()]
    routes: dict[int, list[Route]] = {}
    for route in all_routes().filter(model__in=rows):
        routes.setdefault(route.model_id, []).append(route)
    return render(
        request, "registry/models.html", {"rows": [(m, routes.get(m.pk, [])) for m in rows], "filter": wanted}
    )


def readable_model(request: HttpRequest, slug: str) -> ServedModel:
    """The model, or NotFound in the same words for a person who may not read it."""
    return visible_model(actor_of(request), slug)


@login_required
def model(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    releases = releases_of(served).prefetch_related(Prefetch("gate_runs", queryset=newest_gate_runs()))
    pages = Paginator(releases, RELEASES_PER_PAGE)
    pages.count = served.last_number  # numbers have no gap; counting a hundred thousand rows takes as long as the page
    page = pages.get_page(request.GET.get("page"))
    facts = _live_facts(request, served)
    rows = _met_traffic(page, facts["routes"])
    more = {"page": page, "rows": rows, "rollouts": rollouts_of([served])[:5]}
    return render(request, "registry/model.html", {**facts, **more})


@live
def model_live(request: HttpRequest, slug: str) -> HttpResponse:
    return render(request, "registry/_model_live.html", _live_facts(request, readable_model(request, slug)))


def _live_facts(request: HttpRequest, served: ServedModel) -> dict[str, Any]:
    """What serves the model where, and the ways back: (route, promoted rollout, is its undo window open, has it closed)."""
    found = []
    for route in all_routes().filter(model=served):
        last = last_promoted(served, route.environment)
        found.append((route, last, last is not None and is_open(last), last is not None and is_closed(last)))
    may_shut = may(actor_of(request), Verb.ROLL_BACK, served.team.slug)
    return {"model": served, "routes": found, "may_shut": may_shut}


def _met_traffic(page: Page[Release], routes: list[Any]) -> list[tuple[Release, list[str], list[Any]]]:
    """(release, where it serves now, when it was taken back) for each row of the page."""
    before = rolled_back([release.pk for release in page])
    return [
        (one, [route.environment.slug for route, *_ in routes if route.stable_id == one.pk], before.get(one.pk, []))
        for one in page
    ]


@login_required
def roll_back(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)

    def verb() -> None:
        environment = find_environment(request.POST.get("environment", ""))
        if environment is None:
            raise Invalid("no_such_environment", "Choose the environment to roll back in.")
        actions.roll_back_model(
            actor=actor_of(request),
            model=served,
            environment=environment,
            reason=optional_reason_in(request) or NO_REASON,
        )

    then = reverse("model", args=[slug])
    return act(request, verb, done=f"{slug} is being rolled back.", then=then, page=lambda: model(request, slug))
