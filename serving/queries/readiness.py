"""How many servers of a release answer in an environment, for many releases at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Count, Q, QuerySet

from ledger.queries.statements import Statement
from serving.core.lifecycle import LIVE, DeploymentState
from serving.models import Deployment
from serving.queries.deployments import among_text, array_text


@dataclass(frozen=True)
class Readiness:
    """Of one release in one environment: `wanted` servers, `answering` of them (a real inference was right and nothing is known
    against them), `drifted` with files that are not as sealed; the nodes they are on; the release's number and model."""

    number: int
    model_id: int
    wanted: int
    answering: int
    drifted: int
    nodes: tuple[str, ...]

    @property
    def state(self) -> str:
        """A word for the whole: drifted, lost (none answers), unhealthy (some do not), healthy."""
        if self.drifted:
            return "drifted"
        if not self.answering:
            return "lost"
        return "healthy" if self.answering == self.wanted else "unhealthy"


def readiness_of(models: Iterable[int]) -> dict[tuple[int, UUID], Readiness]:
    """By (environment, release), for every release of these models that should run somewhere. One query."""
    return {
        (environment, release): Readiness(number or 0, model, wanted, answering, drifted, tuple(nodes))
        for environment, release, number, model, wanted, answering, drifted, nodes in _READINESS.rows(
            models=array_text(models)
        )
    }


def _readiness(models: str) -> QuerySet[Any, tuple[Any, ...]]:
    running = Q(servers__ended_at=None)
    answering = running & Q(state=DeploymentState.READY, servers__is_serving=True)
    rows = Deployment.objects.filter(
        state__in=sorted(LIVE), is_wanted=True, release__model_id__in=among_text(models)
    ).order_by("environment_id", "release_id")
    of_release = rows.values_list("environment_id", "release_id", "release__number", "release__model_id")
    return of_release.annotate(
        wanted=Count("pk", distinct=True),
        answering=Count("pk", filter=answering, distinct=True),
        drifted=Count("pk", filter=running & Q(servers__pk__isnull=False) & ~Q(servers__drift=[]), distinct=True),
        on=ArrayAgg("node_id", distinct=True, order_by="node_id"),
    )


_READINESS = Statement(_readiness)
