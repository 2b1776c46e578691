"""One model: what is live where, and its releases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Page, Paginator
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from ledger.core.errors import Invalid
from registry.models import Release, ServedModel
from registry.queries import releases_of
from registry.queries.aliases import with_alias_names
from registry.queries.releases import sizes_of
from rollouts import actions
from rollouts.queries.rolled_back import RolledBack, rolled_back
from rollouts.queries.rollouts import rollouts_of
from rollouts.queries.undo_window import is_closed, is_open, last_promoted
from serving.queries import find_environment
from serving.queries.routes import all_routes
from validators.models import GateRun
from validators.queries import newest_gate_runs
from validators.queries.gate_runs import accuracies_of
from web.pages.forms import NO_REASON, act, optional_reason_in
from web.pages.model_frame import frame, readable_model
from web.pages.session import live

RELEASES_PER_PAGE = 25


@login_required
def model(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    releases = with_alias_names(releases_of(served)).prefetch_related(
        Prefetch("gate_runs", queryset=newest_gate_runs())
    )
    pages = Paginator(releases, RELEASES_PER_PAGE)
    pages.count = served.last_number  # numbers have no gap; counting a hundred thousand rows takes as long as the page
    page = pages.get_page(request.GET.get("page"))
    facts = live_facts(request, served)
    rows = _release_rows(page, facts["routes"])
    may_push = may(actor_of(request), Verb.PUSH_RELEASE, served.team.slug, served.slug)
    more = {"page": page, "rows": rows, "rollouts": rollouts_of([served])[:5], "may_push": may_push}
    return render(request, "registry/model.html", {**frame(served, "model"), **facts, **more})


@live
def model_live(request: HttpRequest, slug: str) -> HttpResponse:
    return render(request, "registry/_model_live.html", live_facts(request, readable_model(request, slug)))


def live_facts(request: HttpRequest, served: ServedModel) -> dict[str, Any]:
    """What serves the model where, and the ways back: (route, promoted rollout, is its undo window open, has it closed)."""
    found = []
    for route in all_routes().filter(model=served):
        last = last_promoted(served, route.environment)
        is_undone = last is not None and is_open(last, route)
        is_over = last is not None and is_closed(last, route, known_open=is_undone)
        found.append((route, last, is_undone, is_over))
    may_shut = may(actor_of(request), Verb.ROLL_BACK, served.team.slug, served.slug)
    return {"model": served, "routes": found, "may_shut": may_shut}


@dataclass(frozen=True)
class ReleaseRow:
    """A release in its model's list: what its gates measured, and what became of it in production."""

    release: Release
    gate_run: GateRun | None
    accuracy: dict[str, float] | None
    size_bytes: int
    aliases: list[str]
    serves: list[str]  # slugs of the environments
    tried: list[tuple[str, int]]  # (environment's slug, basis points of its traffic) where it is a candidate
    before: list[RolledBack]


def _release_rows(page: Page[Release], routes: list[Any]) -> list[ReleaseRow]:
    """Each row of the page, by three queries."""
    ids = [release.pk for release in page]
    before, sizes = rolled_back(ids), sizes_of(ids)
    runs = {one.pk: next(iter(one.gate_runs.all()), None) for one in page}
    accuracies = accuracies_of([run.pk for run in runs.values() if run is not None])
    found = []
    for one in page:
        run = runs[one.pk]
        serves = [route.environment.slug for route, *_ in routes if route.stable_id == one.pk]
        tried = [(route.environment.slug, route.candidate_bp) for route, *_ in routes if route.candidate_id == one.pk]
        accuracy = accuracies.get(run.pk) if run else None
        size, names = sizes.get(one.pk, 0), one.alias_names  # type: ignore[attr-defined]
        found.append(
            ReleaseRow(one, run, accuracy, size, names, serves, [at for at in tried if at[1]], before.get(one.pk, []))
        )
    return found


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
