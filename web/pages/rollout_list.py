"""The list of rollouts: searched by its address."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from accounts.api.requests import actor_of
from accounts.core.instants import EXAMPLES, read_instant
from ledger.core.errors import Invalid
from registry.queries import visible_models
from rollouts.core.lifecycle import RolloutState
from rollouts.queries.rollout_list import GROUPS, ListFilter, found_rollouts, people_of
from serving.environments.queries.inventory import environment_titles
from web.listing import Filter, asked

PER_PAGE = 25


@login_required
def rollouts(request: HttpRequest) -> HttpResponse:
    """The newest first."""
    slugs = dict(visible_models(actor_of(request)).values_list("pk", "slug"))
    filters, models = _filters(request, slugs), tuple(slugs)
    try:
        rows, error = found_rollouts(models, _narrowed(filters)), None
    except Invalid as refused:
        rows, error = found_rollouts(models, ListFilter()), refused
    facts = {
        "page": Paginator(rows, PER_PAGE).get_page(request.GET.get("page")),
        "filters": filters,
        "is_filtered": any(one.value for one in filters),
        "error": error,
    }
    return render(request, "rollouts/rollouts.html", facts, status=error.status if error else 200)


def _filters(request: HttpRequest, slugs: Mapping[int, str]) -> list[Filter]:
    states = [*((name, name) for name in GROUPS), *((one.value, one.value.replace("_", " ")) for one in RolloutState)]
    return asked(
        request,
        Filter("model", "Model", [(slug, slug) for slug in slugs.values()]),
        Filter("state", "State", states),
        Filter("environment", "Environment", environment_titles()),
        Filter("person", "Asked for by", [(name, name) for name in people_of(tuple(slugs))]),
        Filter("since", "Since", kind="search", hint="2026-11-22 or 2 h"),
        Filter("until", "Until", kind="search", hint="now"),
    )


def _narrowed(filters: list[Filter]) -> ListFilter:
    value = {one.name: one.value for one in filters}
    return ListFilter(
        value["model"],
        value["environment"],
        value["state"],
        value["person"],
        _instant(value["since"]),
        _instant(value["until"]),
    )


def _instant(text: str) -> datetime | None:
    try:
        return read_instant(text, timezone.now())
    except (ValueError, OverflowError):
        raise Invalid("not_an_instant", f"“{text[:40]}” is no instant. Write {EXAMPLES}.") from None
