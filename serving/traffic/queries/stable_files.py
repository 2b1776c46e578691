"""Files of stable releases, which a node's cache evicts last."""

from __future__ import annotations

from registry.queries.releases import blobs_of
from serving.models import Route


def stable_blobs() -> set[str]:
    """Returns the sha256s of the files of every stable release in an environment with a gateway. Two queries."""
    routes = Route.objects.filter(environment__is_routed=True, environment__retired_at=None)
    return blobs_of(set(routes.values_list("stable_id", flat=True)))
