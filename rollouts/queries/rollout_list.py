"""The list of rollouts as people search it, and how many of each week ended how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from django.db.models import Count, Q, QuerySet
from django.db.models.functions import TruncWeek

from accounts.queries import users
from rollouts.core.lifecycle import ACTIVE, FINAL, RolloutState
from rollouts.models import Rollout

S = RolloutState
#: Words for several states at once.
GROUPS: dict[str, frozenset[RolloutState]] = {"going on": frozenset(ACTIVE), "ended": frozenset(FINAL)}
#: How a week's rollouts are told, from the best outcome to those that moved nothing.
OUTCOMES: dict[str, frozenset[RolloutState]] = {
    "promoted": frozenset({S.PROMOTED}),
    "rolled back": frozenset({S.ROLLED_BACK, S.REVERTED}),
    "dropped": frozenset({S.REJECTED, S.CANCELLED, S.SUPERSEDED}),
    "going on": frozenset(ACTIVE),
}


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


def weeks_of(models: Collection[int], today: date, weeks: int = 12) -> list[tuple[date, dict[str, int]]]:
    """(Monday, how many rollouts that were asked for in its week ended how) of the last weeks, the oldest first. One query."""
    first = today - timedelta(days=today.weekday(), weeks=weeks - 1)
    counts: dict[date, Counter[str]] = {first + timedelta(weeks=i): Counter() for i in range(weeks)}
    since = datetime.combine(first, time(), UTC)
    rows = Rollout.objects.filter(model__in=models, created_at__gte=since).order_by()
    weekly = rows.annotate(monday=TruncWeek("created_at", tzinfo=UTC)).values_list("monday", "state")
    for monday, state, count in weekly.annotate(count=Count("pk")):
        outcome = next((name for name, states in OUTCOMES.items() if state in states), "")
        if monday.date() in counts and outcome:
            counts[monday.date()][outcome] += count
    return [(monday, dict(found)) for monday, found in counts.items()]


def people_of(models: Collection[int]) -> list[str]:
    """Who asked for rollouts of these models, by name."""
    asked = Rollout.objects.filter(model__in=models).order_by().values("requested_by").distinct()
    return list(users().filter(pk__in=asked).order_by("username").values_list("username", flat=True))
