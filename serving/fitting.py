"""Which nodes a release fits, as far as its envelope declares and their agents tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.fit import Fit, fit
from registry.core.node_facts import from_agent, from_labels
from registry.models import Release
from registry.queries import manifest_of
from serving.models import Node
from serving.queries import nodes


def fit_of(release: Release, node: Node) -> Fit:
    """The verdict on a sealed release and a node, with the versions of the runtime that the release names."""
    manifest = manifest_of(release)
    versions = next(
        (own.get("versions") for own in node.runtimes if own.get("image") == manifest["runtime"]["image"]), None
    )
    return fit(manifest["envelope"], from_agent(node.facts, versions), backend=manifest["runtime"]["backend"])


def fits_of(release: Release) -> list[dict[str, Any]]:
    """Every node by name: [{"node", "has_runtime", "seen_at", "verdict", "reasons"}]."""
    manifest = manifest_of(release)
    image, backend = manifest["runtime"]["image"], manifest["runtime"]["backend"]
    return [
        {
            "node": node.name,
            "has_runtime": any(own["image"] == image and backend in own["backends"] for own in node.runtimes),
            "seen_at": node.seen_at,
            **fit_of(release, node).as_json(),
        }
        for node in nodes().order_by("name")
    ]


def fit_labels(release: Release, labels: Mapping[str, Any]) -> Fit:
    """The verdict on a node that only its labels are known of."""
    manifest = manifest_of(release)
    return fit(manifest["envelope"], from_labels(labels), backend=manifest["runtime"]["backend"])
