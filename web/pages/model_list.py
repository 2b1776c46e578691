"""The list of models: filtered, sorted and paged by its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from accounts.api.requests import actor_of
from registry.models import ServedModel
from registry.queries import last_sealed
from registry.queries.releases import models_seen, sight_of
from rollouts.core.lifecycle import FINAL
from rollouts.queries.places import Place, PlaceRollout, places_in
from rollouts.queries.traffic import lately_of
from serving.models import Environment
from serving.targets.queries import all_environments
from web.listing import Filter, asked, sort_asked
from web.pages.unread import Unread, unread_environments

PER_PAGE: Final = 50
SORTS: Final = ("name", "team", "releases", "activity")
_OF_MODEL: Final = ("slug", "title", "last_number", "created_at", "team__slug")  # the columns of a model


def _models(*sight: Any) -> QuerySet[Any, Any]:
    return models_seen(*sight).only(*_OF_MODEL)


_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ModelRow:
    """One model: the places that it serves, its newest rollout anywhere, and when something last happened to it."""

    model: ServedModel
    places: Sequence[Place]
    last: PlaceRollout | None
    active_at: datetime | None
    unread: Mapping[int, Unread]  # by the environment's key

    @property
    def no_green(self) -> bool:
        """Whether it is unknown in some environment that the model serves its users."""
        return any(one.is_doubted or (one.is_awake and one.environment.pk in self.unread) for one in self.places)

    @property
    def standing(self) -> list[tuple[Place, str]]:
        """The model's routes, each with a word if it may not serve users."""
        return [(one, self._word(one)) for one in self.routed]

    def _word(self, place: Place) -> str:
        if place.is_lost:
            return "lost"
        if place.is_awake and place.environment.pk in self.unread:
            return "unknown"
        if place.alarms:
            return "burning"
        return "unproven" if place.is_doubted else ""

    @property
    def routed(self) -> list[Place]:
        return [place for place in self.places if place.route is not None]


@login_required
def models(request: HttpRequest) -> HttpResponse:
    every = list(_models(*sight_of(actor_of(request))))
    environments = all_environments()
    filters = asked(
        request,
        Filter("text", "Model, title or team", hint="part of a name"),
        Filter("team", "Team", options=[(slug, slug) for slug in sorted({model.team.slug for model in every})]),
        Filter("live", "Live in", options=[(one.slug, one.title) for one in environments if one.is_routed]),
        Filter("outcome", "Last rollout", options=[("moving", "under way"), *_outcomes()]),
    )
    chosen = {one.name: one.value for one in filters}
    sort = sort_asked(request, SORTS, "name")
    named = [model for model in every if _is_named(model, chosen)]
    number = request.GET.get("page")
    if chosen["live"] or chosen["outcome"] or sort.endswith("activity"):  # these need the places of all models
        rows = [row for row in _rows(named, environments) if _fits(row, chosen)]
        page = Paginator(_sorted(rows, sort, of=lambda row: row.model), PER_PAGE).get_page(number)
    else:
        page = Paginator(_sorted(named, sort, of=lambda model: model), PER_PAGE).get_page(number)
        page.object_list = _rows(list(page.object_list), environments)
    facts = {
        "page": page, "filters": filters, "is_filtered": any(chosen.values()), "sort": sort, "count": page.paginator.count,
    }  # fmt: skip
    return render(request, "registry/models.html", facts)


def _outcomes() -> list[tuple[str, str]]:
    return sorted((state.value, state.value.replace("_", " ")) for state in FINAL)


def _rows(models: Sequence[ServedModel], environments: Sequence[Environment]) -> list[ModelRow]:
    places: dict[int, list[Place]] = {}
    for one in (place for there in places_in(environments, models).values() for place in there):
        places.setdefault(one.model.pk, []).append(one)
    sealed = last_sealed(models)
    now = timezone.now()
    unread = unread_environments(lately_of(models, now), now)
    found = []
    for model in models:
        mine = places.get(model.pk, [])
        last = max((place.last for place in mine if place.last is not None), key=lambda one: one.pk, default=None)
        times = [
            sealed.get(model.pk),
            model.created_at,
            *((last.created_at, last.ended_at) if last is not None else ()),
        ]
        found.append(ModelRow(model, mine, last, max((at for at in times if at is not None), default=None), unread))
    return found


def _is_named(model: ServedModel, chosen: dict[str, str]) -> bool:
    text, names = chosen["text"].casefold(), (model.slug, model.title, model.team.slug)
    if text and not any(text in name.casefold() for name in names):
        return False
    return not chosen["team"] or model.team.slug == chosen["team"]


def _fits(row: ModelRow, chosen: dict[str, str]) -> bool:
    outcome = chosen["outcome"]
    if chosen["live"] and chosen["live"] not in {place.environment.slug for place in row.routed}:
        return False
    if outcome == "moving":
        return any(place.moving is not None for place in row.places)
    return not outcome or (row.last is not None and row.last.state == outcome)


def _sorted(rows: list[Any], sort: str, *, of: Callable[[Any], ServedModel]) -> list[Any]:
    """By their models; equal ones by their names, whichever way round. Only a `ModelRow` knows of its activity."""
    keys: dict[str, Any] = {
        "name": lambda row: of(row).slug,
        "team": lambda row: of(row).team.slug,
        "releases": lambda row: of(row).last_number,
        "activity": lambda row: row.active_at or _LONG_AGO,
    }
    by_name = sorted(rows, key=keys["name"])
    return sorted(by_name, key=keys[sort.removeprefix("-")], reverse=sort.startswith("-"))
