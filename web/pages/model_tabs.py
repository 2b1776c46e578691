"""The tabs of a model that only show: what served it, and what happened to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from accounts.api.requests import actor_of
from audit.queries import visible_events
from audit.queries.event_search import about_model
from rollouts.queries.rollouts import newest_of
from rollouts.queries.serving_history import ServedChange, changes_of_moves, moves_of
from web.pages.events import cursor_page, with_subjects
from web.pages.history import who_served
from web.pages.model_frame import frame, readable_model
from web.pages.models import live_facts
from web.plots import Plot

#: Changes of what serves that the tab shows of each environment; the history page has all of them.
CHANGES_SHOWN = 25
#: Environments that it tells of, each by three queries; the history page has the others.
MOST_ENVIRONMENTS = 2


@login_required
def serving(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    live = live_facts(request, served)
    changes: list[tuple[Any, list[ServedChange], Plot]] = []
    end = timezone.now()
    for route, *_ in live["routes"][:MOST_ENVIRONMENTS]:
        moves = moves_of(served, route.environment).order_by("-seq")[:CHANGES_SHOWN]
        found = changes_of_moves(served, moves)
        begin = found[-1].at if found else end
        plot = who_served(served, route.environment, found[::-1], begin, end)
        changes.append((route.environment, found, replace(plot, name=f"served-{route.environment.slug}")))
    facts = {**live, "changes": changes, "roles": ("stable", "candidate"), "rollouts": newest_of(served, 5)}
    return render(request, "registry/model_serving.html", {**frame(served, "model_serving"), **facts})


@login_required
def activity(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    rows = about_model(visible_events(actor_of(request)), served)
    page = cursor_page(request, rows)
    facts = {"page": page, "rows": with_subjects(page.rows)}
    return render(request, "registry/model_activity.html", {**frame(served, "model_activity"), **facts})
