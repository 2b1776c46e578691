"""Which releases routes and replicas use, for the registry to ask before it retires one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from uuid import UUID

from django.db.models import F, UUIDField, Value

from serving.environments.core.lifecycle import LIVE
from serving.models import Replica, Route

_ROUTE, _DEPLOYMENT = 0, 1


def release_usages(releases: Collection[UUID] | None) -> Iterator[tuple[UUID, str]]:
    """As `registry.hooks.usage.Source`: the routes' releases before the replicas'. One query. The routes of a retired environment
    use nothing."""
    in_use = Route.objects.filter(environment__retired_at=None)
    routes = in_use.annotate(kind=Value(_ROUTE), state=Value(""), arm=F("stable_id"), other=F("candidate_id"))
    replicas = Replica.objects.filter(state__in=sorted(LIVE)).annotate(
        kind=Value(_DEPLOYMENT), arm=F("release_id"), other=Value(None, output_field=UUIDField())
    )
    if releases is not None:
        replicas = replicas.filter(release__in=releases)
    columns = ("kind", "pk", "arm", "other", "environment__slug", "state")
    both = routes.order_by().values_list(*columns).union(replicas.order_by().values_list(*columns), all=True)
    for kind, _, release, candidate, environment, state in both.order_by("kind", "pk"):
        if kind == _DEPLOYMENT:
            yield release, f"deployed in {environment} ({state})"
            continue
        if releases is None or release in releases:
            yield release, f"stable in {environment}"
        if candidate is not None and (releases is None or candidate in releases):
            yield candidate, f"candidate in {environment}"
