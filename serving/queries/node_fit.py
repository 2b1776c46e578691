"""Node fit: which nodes a release fits, by its envelope and what their agents report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet, Subquery

from ledger.queries.statements import Statement
from registry.core.fit import SEVERITY, Fit, fit
from registry.core.node_facts import from_agent, from_labels
from registry.models import Release
from registry.queries import manifest_of
from serving.core.containment import may_run_code, of_facts, sentence_of
from serving.models import Environment, Node
from serving.queries.deployments import deployments_in, nodes

_LAST_HEARD_OF = F("seen_at").desc(nulls_last=True)


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
    free = Node.objects.filter(cordoned_at=None).order_by(_LAST_HEARD_OF)
    return next(iter(nodes_for(release, free)), None)


@dataclass(frozen=True)
class Places:
    """Where a release may serve: the node that serves it `here`, None where none does, and those that take deployments, the last
    heard of first."""

    here: Node | None
    free: tuple[Node, ...]

    def of(self, release: Release) -> Node | None:
        """The node that serves it, else the `next_node`."""
        return self.here or next(iter(nodes_for(release, self.free)), None)


def places_for(release: Release, environment: Environment) -> Places:
    """Where the release may serve in the environment. One query."""
    rows = _PLACES.rows(release=release.pk, environment=environment.pk)
    here = next((node for node in rows if node.is_here), None)
    return Places(here, tuple(node for node in rows if node.cordoned_at is None))


def _places(release: UUID, environment: int) -> QuerySet[Node]:
    serving = deployments_in(release, environment).values("node")[:1]
    is_here = ExpressionWrapper(Q(pk=Subquery(serving)), BooleanField())
    rows = Node.objects.annotate(is_here=is_here).filter(Q(cordoned_at=None) | Q(is_here=True))
    return rows.order_by(_LAST_HEARD_OF)


_PLACES = Statement(_places)


def fit_labels(release: Release, labels: Mapping[str, Any]) -> Fit:
    """The verdict on a node that only its labels are known of."""
    manifest = manifest_of(release)
    return fit(manifest["envelope"], from_labels(labels), backend=manifest["runtime"]["backend"])
