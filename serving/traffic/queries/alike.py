"""Releases that nothing tells apart on a server whose owner put them there: only their runtimes are compared."""

from __future__ import annotations

import json
from typing import Any

from registry.models import Release
from registry.queries import manifests_of
from serving.traffic.queries.routes import all_routes


def stable_alike(release: Release) -> tuple[str, ...]:
    """The stable releases of its model that are sealed for the same runtime, by name. None for one that is stable itself: it is
    never refused for another."""
    stable = {one.stable_id: one.stable.name for one in all_routes().filter(model=release.model_id)}
    if release.pk in stable:
        return ()
    sealed = {pk: _runtime(text) for pk, text in manifests_of([*stable, release.pk]).items()}
    return tuple(sorted(name for pk, name in stable.items() if sealed.get(pk) == sealed[release.pk]))


def _runtime(manifest: str) -> Any:
    return json.loads(manifest)["runtime"]["image"]
