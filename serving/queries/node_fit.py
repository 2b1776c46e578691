"""Node fit: which nodes a release fits, by its envelope and what their agents report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import F

from registry.core.fit import SEVERITY, Fit, fit
from registry.core.node_facts import from_agent, from_labels
from registry.models import Release
from registry.queries import manifest_of
from serving.core.containment import may_run_code, of_facts, sentence_of
from serving.models import Node
from serving.queries.deployments import nodes


def fit_of(release: Release, node: Node) -> Fit:
    """The verdict on a sealed release and a node, with the versions of the runtime that the release names."""
    return _fit_of(manifest_of(release), node)


def _fit_of(manifest: Mapping[str, Any], node: Node) -> Fit:
    versions = next(
        (own.get("versions") for own in node.runtimes if own.get("image") == manifest["runtime"]["image"]), None
    )
    return fit(manifest["envelope"], from_agent(node.facts, versions), backend=manifest["runtime"]["backend"])


def fits_of(release: Release) -> list[dict[str, Any]]:
    """Every node by name: [{"node", "has_runtime", "seen_at", "containment", "contained", "verdict", "reasons"}]."""
    manifest = manifest_of(release)
    image, backend = manifest["runtime"]["image"], manifest["runtime"]["backend"]
    return [
        {
            "node": node.name,
            "has_runtime": any(own["image"] == image and backend in own["backends"] for own in node.runtimes),
            "seen_at": node.seen_at,
            "containment": str(of_facts(node.facts) or "unknown"),
            "contained": sentence_of(node.facts),
            **_fit_of(manifest, node).as_json(),
        }
        for node in nodes().order_by("name")
    ]


def nodes_for(release: Release, among: Iterable[Node]) -> list[Node]:
    """Those of the nodes that offer the release's image and backend: the ones that may run its code and that it fits first.

    One that contradicts the envelope comes last and is not left out: who declared too much would have nowhere to go. Nor is one
    that does not run code that it cannot shut in: its launcher refuses with the reason.
    """
    wanted = manifest_of(release)["runtime"]

    def rank(node: Node) -> tuple[bool, int]:
        refuses = release.is_code_bearing and not may_run_code(node.facts)
        return refuses, SEVERITY.index(fit_of(release, node).verdict)

    found = [
        node
        for node in among
        if any(own["image"] == wanted["image"] and wanted["backend"] in own["backends"] for own in node.runtimes)
    ]
    return sorted(found, key=rank) if len(found) > 1 else found


def next_node(release: Release) -> Node | None:
    """The node that a new deployment is given: one that its envelope fits before others, the last heard of first."""
    free = Node.objects.filter(cordoned_at=None).order_by(F("seen_at").desc(nulls_last=True))
    return next(iter(nodes_for(release, free)), None)


def fit_labels(release: Release, labels: Mapping[str, Any]) -> Fit:
    """The verdict on a node that only its labels are known of."""
    manifest = manifest_of(release)
    return fit(manifest["envelope"], from_labels(labels), backend=manifest["runtime"]["backend"])
