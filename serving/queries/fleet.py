"""Named reads of the fleet: each node with what runs on it, as far as the asker may know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from accounts.core.access import Actor
from registry.core.node_facts import NodeFacts, from_agent
from registry.queries import manifests_of, visible_models
from serving.core.containment import of_facts, sentence_of
from serving.models import Deployment, Node, Server
from serving.queries.deployments import current_servers, live_deployments, nodes

#: A node whose agent was silent for so long is not said to be about.
SILENT_AFTER = timedelta(seconds=30)
#: Deployments that one page names.
MOST_DEPLOYMENTS = 500


@dataclass(frozen=True)
class OnNode:
    """A deployment with its server, if one runs. `release` is empty where the asker may not read the model."""

    deployment: Deployment
    server: Server | None
    model: str = ""
    release: str = ""
    number: int | None = None
    declared_mib: int | None = None  # host memory that its envelope asks for


@dataclass(frozen=True)
class NodeView:
    """A node. None in `known` is unknown, never “none” or “ok”. `declared_mib` sums what is declared; `undeclared` says of how
    many deployments that is not known."""

    node: Node
    known: NodeFacts
    is_silent: bool
    containment: str
    contained: str
    gpus_unknown: str
    held: list[OnNode] = field(default_factory=list)

    @property
    def declared_mib(self) -> int:
        return sum(one.declared_mib or 0 for one in self.held)

    @property
    def undeclared(self) -> int:
        return sum(one.declared_mib is None for one in self.held)

    @property
    def state(self) -> str:
        """cordoned, silent or about."""
        return "cordoned" if self.node.cordoned_at else "silent" if self.is_silent else "about"


def fleet_of(actor: Actor, *, now: datetime | None = None) -> list[NodeView]:
    """Every node by name, with what runs there. Five queries, however many there are."""
    now = now or timezone.now()
    mine = set(visible_models(actor).values_list("pk", flat=True))
    deployments = list(live_deployments().order_by("node_id", "-pk")[:MOST_DEPLOYMENTS])
    servers: dict[int, Server] = {}
    for server in current_servers().filter(deployment__in=[one.pk for one in deployments]):
        servers.setdefault(server.deployment_id, server)  # the newest
    manifests = manifests_of({one.release_id for one in deployments if one.release.model_id in mine})
    held: dict[str, list[OnNode]] = {}
    for one in deployments:
        held.setdefault(one.node_id, []).append(_on_node(one, servers.get(one.pk), mine, manifests))
    return [_view(node, held.get(node.name, []), now) for node in nodes()]


def _on_node(one: Deployment, server: Server | None, mine: set[int], manifests: Mapping[Any, str]) -> OnNode:
    if one.release.model_id not in mine:
        return OnNode(one, server)
    envelope = json.loads(manifests.get(one.release_id) or "{}").get("envelope") or {}
    asked = (envelope.get("host") or {}).get("memory_mib_min")
    declared = asked if isinstance(asked, int) and not isinstance(asked, bool) else None
    return OnNode(one, server, one.release.model.slug, one.release.name, one.release.number, declared)


def _view(node: Node, held: list[OnNode], now: datetime) -> NodeView:
    known = from_agent(node.facts)
    why = str(node.facts.get("gpus_unknown") or "its agent did not say") if known.gpus is None else ""
    is_silent = node.seen_at is None or now - node.seen_at > SILENT_AFTER
    containment = str(of_facts(node.facts) or "unknown")
    return NodeView(node, known, is_silent, containment, sentence_of(node.facts), why, held)
