"""A model: its live releases by environment, and its list of releases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from ledger.core.errors import Invalid
from registry.models import ServedModel
from rollouts import actions
from rollouts.models import Rollout
from rollouts.queries.alarms import objectives_now, prolonged_window, watched_routes
from rollouts.queries.gateway_reads import read_routes
from rollouts.queries.places import served_places
from rollouts.queries.rollouts import newest_of
from rollouts.queries.traffic import lately_of
from rollouts.queries.undo_window import is_closed, is_open, last_promoted
from serving.targets.queries import find_environment
from web.pages.forms import NO_REASON, act, optional_reason_in
from web.pages.model_frame import frame, readable_model
from web.pages.release_list import release_list
from web.pages.session import live
from web.pages.traffic_cells import traffic_cell
from web.pages.unread import is_in_trouble, unread_environments


@login_required
def model(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    facts = {**live_facts(request, served), **frame(served, "model")}
    facts |= _releases(request, served, facts["routes"])
    status = facts["error"].status if facts["error"] else 200
    return render(request, "registry/model.html", facts, status=status)


@live
def model_live(request: HttpRequest, slug: str) -> HttpResponse:
    return render(request, "registry/_model_live.html", live_facts(request, readable_model(request, slug)))


@live
def model_releases(request: HttpRequest, slug: str) -> HttpResponse:
    """The releases and the latest rollouts, by the same filters as the page."""
    served = readable_model(request, slug)
    routes = read_routes(served)
    facts = {
        "model": served,
        "no_green": is_in_trouble(served, routes),
        **_releases(request, served, [(one,) for one in routes]),
    }
    return render(request, "registry/_model_releases.html", facts)


def _releases(request: HttpRequest, served: ServedModel, routes: Sequence[Any]) -> dict[str, Any]:
    may_push = may(actor_of(request), Verb.PUSH_RELEASE, served.team.slug, served.slug)
    listed = {**release_list(request, served, routes), "filters_path": reverse("model", args=[served.slug])}
    return {**listed, "rollouts": newest_of(served, 5), "may_push": may_push}


def live_facts(request: HttpRequest, served: ServedModel) -> dict[str, Any]:
    """The releases that serve the model, and the ways back: (route, promoted rollout, is its undo window open, has it closed, why it is
    still open, place, traffic, `Unread` or None)."""
    found = []
    routes = watched_routes(served)
    places = served_places(served, routes) if routes else {}
    now = timezone.now()
    lately = lately_of([served], now) if routes else {}
    unread = unread_environments(lately, now)
    for route in routes:
        last = last_promoted(served, route.environment)
        is_undone = last is not None and is_open(last, route)
        is_over = last is not None and is_closed(last, route, known_open=is_undone)
        place = places[route.pk]
        traffic = traffic_cell(lately.get((route.environment_id, served.pk)), served.objectives)
        prolonged = prolonged_window(last, route) if last is not None and is_undone else None
        found.append((route, last, is_undone, is_over, prolonged, place, traffic, unread.get(route.environment_id)))
    may_shut = may(actor_of(request), Verb.ROLL_BACK, served.team.slug, served.slug)
    is_lost = any(place.is_lost or (unseen is not None and place.is_awake) for *_, place, _, unseen in found)
    no_green = is_lost or any(place.is_doubted for *_, place, _, _ in found)
    return {
        "model": served,
        "routes": found,
        "objectives": [(route.environment.title, objectives_now(route, now)) for route in routes],
        "may_shut": may_shut,
        "is_bad": is_lost or any(place.alarms for place in places.values()),
        "no_green": no_green,
    }


@login_required
def compare(request: HttpRequest, slug: str) -> HttpResponse:
    """What differs between the two releases that are chosen: the newer against the older."""
    readable_model(request, slug)
    chosen = sorted({int(text) for text in request.GET.getlist("r") if re.fullmatch("[0-9]{1,9}", text)})
    if len(chosen) != 2:
        messages.error(request, "Choose two releases to compare.")
        return redirect("model", slug)
    return redirect(f"{reverse('release_diff', args=[slug, chosen[1]])}?against=r{chosen[0]}")


@login_required
def roll_back(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    done: list[Rollout] = []

    def verb() -> None:
        environment = find_environment(request.POST.get("environment", ""))
        if environment is None:
            raise Invalid("no_such_environment", "Choose the environment to roll back in.")
        done[:] = [
            actions.roll_back_model(
                actor=actor_of(request),
                model=served,
                environment=environment,
                reason=optional_reason_in(request) or NO_REASON,
            )
        ]

    def rollout_page() -> str:
        """Address that shows the rollback's progress."""
        return reverse("rollout", args=[done[0].pk])

    said = f"{slug} is being rolled back."
    return act(request, verb, done=said, then=rollout_page, page=lambda: model(request, slug))
