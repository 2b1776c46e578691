"""How many servers of a release answer in an environment, for many releases at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.postgres.aggregates import ArrayAgg
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Count, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.expressions import Combinable
from django.db.models.functions import JSONObject

from serving.environments.core.lifecycle import LIVE, ReplicaState
from serving.environments.core.sleep_lifecycle import SleepState
from serving.environments.queries.inventory import among_text, array_text
from serving.environments.queries.reporting import on_reporting, proven_since, reports_since
from serving.models import Replica, Sleep


@dataclass(frozen=True)
class Readiness:
    """Of one release in one environment: `wanted` servers, `answering` of them (a real inference was right, nothing is known
    against them, and their node's agent reports), `drifted` with files that are not as sealed; the nodes they are on; the release's
    number and model.

    `unheard`: servers that answered when the agent of their node last reported. `silent` names those nodes, `silent_since` is when the
    first of them last reported, None if it never did. `unproven`: of those that answer, servers that gave no right answer lately
    (`serving.environments.queries.reporting.is_proven`), the first of them since `right_at`.
    """

    number: int
    model_id: int
    wanted: int
    answering: int
    drifted: int
    nodes: tuple[str, ...]
    unheard: int = 0
    silent: tuple[str, ...] = ()
    silent_since: datetime | None = None
    unproven: int = 0
    right_at: datetime | None = None

    @property
    def proven(self) -> int:
        """Servers that answer and gave a right answer lately, or were never asked."""
        return self.answering - self.unproven

    @property
    def state(self) -> str:
        """A word for the whole: lost (none is known to answer), drifted, unhealthy (some do not answer), unproven, healthy."""
        if not self.answering:
            return "lost"
        if self.drifted:
            return "drifted"
        if self.answering != self.wanted:
            return "unhealthy"
        return "unproven" if self.unproven else "healthy"


def readiness_of(models: Iterable[int], *, now: datetime | None = None) -> dict[tuple[int, UUID], Readiness]:
    """By (environment, release), for every release of these models that should run somewhere. One query."""
    return {
        (environment, release): Readiness(
            number or 0, model, wanted, answering, drifted, tuple(nodes), unheard, tuple(silent or ()), *rest
        )
        for environment, release, number, model, wanted, answering, drifted, nodes, unheard, silent, *rest in _readiness(
            models=array_text(models), since=reports_since(now)
        )
    }


def readiness_column(since: datetime) -> ArraySubquery:
    """For a query of routes: of each route's stable release, none or one object for `readiness_from`. `since`: `reports_since`."""
    of_stable = Replica.objects.filter(
        state__in=sorted(LIVE), is_wanted=True, release=OuterRef("stable"), environment=OuterRef("environment")
    ).order_by()
    counts = _counts(since)
    rows = of_stable.values("release").annotate(
        row=JSONObject(number="release__number", model="release__model", **counts)
    )
    return ArraySubquery(rows.values("row"))


def health_columns(since: datetime) -> dict[str, Combinable]:
    """For a query of routes: `sleep`, asleep or waking, None of a model that is awake there; and `health`, for `readiness_from`."""
    here = Sleep.objects.filter(environment=OuterRef("environment"), model=OuterRef("model"))
    asleep = Subquery(here.exclude(state=SleepState.AWAKE).values("state")[:1])
    return {"sleep": asleep, "health": readiness_column(since)}


def readiness_from(rows: Sequence[Mapping[str, Any]]) -> Readiness | None:
    """Of what `readiness_column` gave."""
    if not rows:
        return None
    (row,) = rows
    since, right_at = (
        datetime.fromisoformat(row[name]) if row[name] else None for name in ("silent_since", "right_at")
    )
    return Readiness(
        row["number"] or 0, row["model"], row["wanted"], row["answering"], row["drifted"], tuple(row["on"]), row["unheard"],
        tuple(row["silent"] or ()), since, row["unproven"], right_at,
    )  # fmt: skip


def _readiness(models: str, since: datetime) -> QuerySet[Any, tuple[Any, ...]]:
    rows = Replica.objects.filter(
        state__in=sorted(LIVE), is_wanted=True, release__model_id__in=among_text(models)
    ).order_by("environment_id", "release_id")
    of_release = rows.values_list("environment_id", "release_id", "release__number", "release__model_id")
    return of_release.annotate(**_counts(since))


def _counts(since: datetime) -> dict[str, Any]:
    """What is counted of the replicas of one release in one environment, in the order of `Readiness`."""
    running = Q(servers__ended_at=None)
    said = running & Q(state=ReplicaState.READY, servers__is_serving=True)
    heard = on_reporting(since, "node__")
    doubted = said & heard & ~proven_since(since, "servers__", "release__model__objectives")
    return {
        "wanted": Count("pk", distinct=True),
        "answering": Count("pk", filter=said & heard, distinct=True),
        "drifted": Count("pk", filter=running & Q(servers__pk__isnull=False) & ~Q(servers__drift=[]), distinct=True),
        "on": ArrayAgg("node_id", distinct=True, order_by="node_id"),
        "unheard": Count("pk", filter=said & ~heard, distinct=True),
        "silent": ArrayAgg("node_id", filter=~heard, distinct=True, order_by="node_id"),
        "silent_since": Min("node__seen_at", filter=~heard),
        "unproven": Count("pk", filter=doubted, distinct=True),
        "right_at": Min("servers__probed_at", filter=doubted),
    }
