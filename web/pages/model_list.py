"""The list of models: filtered, sorted and paged by its address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.api.requests import actor_of
from ledger.queries.statements import Statement
from registry.models import ServedModel
from registry.queries import last_sealed
from registry.queries.releases import models_seen, sight_of
from rollouts.core.lifecycle import FINAL
from rollouts.queries.places import Place, PlaceRollout, places_of
from serving.models import Environment
from web.listing import Filter, asked, sort_asked

PER_PAGE: Final = 50
SORTS: Final = ("name", "team", "releases", "activity")
_OF_MODEL: Final = ("slug", "title", "last_number", "created_at", "team__slug")  # what a row says of its model
_MODELS: Final = Statement(lambda *sight: models_seen(*sight).only(*_OF_MODEL))
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ModelRow:
    """One model: the places that it serves, its newest rollout anywhere, and when something last happened to it."""

    model: ServedModel
    places: Sequence[Place]
    last: PlaceRollout | None
    active_at: datetime | None

    @property
    def routed(self) -> list[Place]:
        return [place for place in self.places if place.route is not None]


@login_required
def models(request: HttpRequest) -> HttpResponse:
    every = _MODELS.rows(*sight_of(actor_of(request)))
    by_environment = places_of(every) if every else {}
    rows = _rows(every, by_environment)
    filters = asked(
        request,
        Filter("text", "Model, title or team", hint="part of a name"),
        Filter("team", "Team", options=[(slug, slug) for slug in sorted({model.team.slug for model in every})]),
        Filter("live", "Live in", options=[(one.slug, one.title) for one in by_environment if one.is_routed]),
        Filter("outcome", "Last rollout", options=[("moving", "under way"), *_outcomes()]),
    )
    chosen = {one.name: one.value for one in filters}
    sort = sort_asked(request, SORTS, "name")
    shown = _sorted([row for row in rows if _fits(row, chosen)], sort)
    page = Paginator(shown, PER_PAGE).get_page(request.GET.get("page"))
    facts = {"page": page, "filters": filters, "is_filtered": any(chosen.values()), "sort": sort, "count": len(shown)}
    return render(request, "registry/models.html", facts)


def _outcomes() -> list[tuple[str, str]]:
    return sorted((state.value, state.value.replace("_", " ")) for state in FINAL)


def _rows(models: Sequence[ServedModel], by_environment: dict[Environment, list[Place]]) -> list[ModelRow]:
    places: dict[int, list[Place]] = {}
    for one in (place for rows in by_environment.values() for place in rows):
        places.setdefault(one.model.pk, []).append(one)
    sealed = last_sealed(models)
    found = []
    for model in models:
        mine = places.get(model.pk, [])
        last = max((place.last for place in mine if place.last is not None), key=lambda one: one.pk, default=None)
        times = [
            sealed.get(model.pk),
            model.created_at,
            *((last.created_at, last.ended_at) if last is not None else ()),
        ]
        found.append(ModelRow(model, mine, last, max((at for at in times if at is not None), default=None)))
    return found


def _fits(row: ModelRow, chosen: dict[str, str]) -> bool:
    text, outcome = chosen["text"].casefold(), chosen["outcome"]
    names = (row.model.slug, row.model.title, row.model.team.slug)
    if text and not any(text in name.casefold() for name in names):
        return False
    if chosen["team"] and row.model.team.slug != chosen["team"]:
        return False
    if chosen["live"] and chosen["live"] not in {place.environment.slug for place in row.routed}:
        return False
    if outcome == "moving":
        return any(place.moving is not None for place in row.places)
    return not outcome or (row.last is not None and row.last.state == outcome)


def _sorted(rows: list[ModelRow], sort: str) -> list[ModelRow]:
    """Equal ones by their names, whichever way round."""
    keys: dict[str, Any] = {
        "name": lambda row: row.model.slug,
        "team": lambda row: row.model.team.slug,
        "releases": lambda row: row.model.last_number,
        "activity": lambda row: row.active_at or _LONG_AGO,
    }
    by_name = sorted(rows, key=keys["name"])
    return sorted(by_name, key=keys[sort.removeprefix("-")], reverse=sort.startswith("-"))
