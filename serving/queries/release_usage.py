"""Which releases routes and deployments use, for the registry to ask before it retires one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from uuid import UUID

from serving.core.lifecycle import LIVE
from serving.models import Deployment, Route


def release_usages(releases: Collection[UUID] | None) -> Iterator[tuple[UUID, str]]:
    """As `registry.hooks.usage.Source`."""
    routes = Route.objects.order_by("pk")
    deployments = Deployment.objects.filter(state__in=sorted(LIVE)).order_by("pk")
    columns = ("stable_id", "candidate_id", "environment__slug")
    for stable, candidate, environment in routes.values_list(*columns):
        if releases is None or stable in releases:
            yield stable, f"stable in {environment}"
        if candidate is not None and (releases is None or candidate in releases):
            yield candidate, f"candidate in {environment}"
    if releases is not None:
        deployments = deployments.filter(release__in=releases)
    for release, environment, state in deployments.values_list("release_id", "environment__slug", "state"):
        yield release, f"deployed in {environment} ({state})"
