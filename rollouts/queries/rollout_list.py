"""The list of rollouts as people search it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from accounts.queries import users
from rollouts.core.lifecycle import ACTIVE, FINAL, RolloutState
from rollouts.models import Rollout

S = RolloutState
#: Words for several states at once.
GROUPS: dict[str, frozenset[RolloutState]] = {"going on": frozenset(ACTIVE), "ended": frozenset(FINAL)}


@dataclass(frozen=True)
class ListFilter:
    """What a list is narrowed to; empty: not at all. `person` asked for it; `since` and `until` are when it was asked for."""

    model: str = ""
    environment: str = ""
    state: str = ""  # a state, or one of GROUPS
    person: str = ""
    since: datetime | None = None
    until: datetime | None = None


#: What a list says of a rollout: a release's manifest and an engine's state are long.
_SAID = (
    "state", "weight_bp", "reason", "created_at", "ended_at", "model__slug", "environment__slug", "environment__title",
    "candidate__number", "stable__number", "requested_by__username",
)  # fmt: skip
_JOINED = ("model", "environment", "candidate", "stable", "requested_by")


def found_rollouts(models: Collection[int], narrowed: ListFilter) -> QuerySet[Rollout]:
    """The rollouts of these models, by keys, newest first, with only the columns of a list."""
    asked = Q()
    for column, value in (
        ("model__slug", narrowed.model), ("environment__slug", narrowed.environment), ("requested_by__username", narrowed.person),
        ("created_at__gte", narrowed.since), ("created_at__lt", narrowed.until),
    ):  # fmt: skip
        asked &= Q(**{column: value}) if value else Q()
    if narrowed.state:
        asked &= Q(state__in=sorted(GROUPS.get(narrowed.state, {narrowed.state})))
    found = Rollout.objects.filter(asked, model__in=models).select_related(*_JOINED)
    return found.only(*_SAID).order_by("-pk")


def people_of(models: Collection[int]) -> list[str]:
    """Who asked for rollouts of these models, by name."""
    asked = Rollout.objects.filter(model__in=models).order_by().values("requested_by").distinct()
    return list(users().filter(pk__in=asked).order_by("username").values_list("username", flat=True))
