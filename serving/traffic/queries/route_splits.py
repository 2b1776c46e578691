"""Between which releases the routes of many models split their traffic, for lists that have a line for each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery

from serving.environments.core.sleep_lifecycle import SleepState
from serving.environments.queries.inventory import among_text, array_text
from serving.models import Route, Sleep


class NamedRelease(NamedTuple):
    """A release by its key and number."""

    pk: UUID
    number: int | None

    @property
    def name(self) -> str:
        return f"r{self.number}"


class RouteSplit(NamedTuple):
    """`candidate_bp`: the candidate's share in basis points, 0 without one; see `serving.models.Route`. `sleep`: asleep or waking; None
    of a model that is awake there."""

    stable: NamedRelease
    candidate: NamedRelease | None
    candidate_bp: int
    stable_since: datetime | None
    sleep: str | None = None


def splits_of(models: Iterable[int]) -> dict[tuple[int, int], RouteSplit]:
    """By (environment, model), of the models of these keys. One query."""
    return {
        (environment, model): RouteSplit(NamedRelease(pk, number), named_release(candidate, its_number), *rest)
        for environment, model, pk, number, candidate, its_number, *rest in _splits(models=array_text(models))
    }


def named_release(pk: UUID | None, number: int | None) -> NamedRelease | None:
    return None if pk is None else NamedRelease(pk, number)


def _splits(models: str) -> QuerySet[Any, tuple[Any, ...]]:
    rows = Route.objects.filter(model_id__in=among_text(models)).order_by("pk")
    arms = ("stable_id", "stable__number", "candidate_id", "candidate__number")
    here = Sleep.objects.filter(environment=OuterRef("environment"), model=OuterRef("model"))
    sleep = Subquery(here.exclude(state=SleepState.AWAKE).values("state")[:1])
    return rows.values_list("environment_id", "model_id", *arms, "candidate_bp", "stable_since", sleep)
