"""Named reads of the fleet: each node with what runs on it, as far as the asker may know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from accounts.core.access import Actor
from registry.core.node_facts import NodeFacts, from_agent
from registry.models import Release
from registry.queries import manifests_of, visible_models
from registry.queries.signature_state import wrong_signatures
from serving.environments.queries.inventory import current_servers, live_replicas, nodes
from serving.environments.queries.reporting import is_proven, is_reporting
from serving.models import Node, Replica, Server
from serving.targets.core.containment import of_facts
from serving.targets.core.gpu import GpuReading, reading_of
from serving.targets.queries.runtimes import runtimes_with_states

#: A node whose agent was silent for so long is not said to be about.
SILENT_AFTER = timedelta(seconds=30)


@dataclass(frozen=True)
class OnNode:
    """A replica with its server, if one runs. `release` is empty where the asker may not read the model."""

    replica: Replica
    server: Server | None
    model: str = ""
    release: str = ""
    number: int | None = None
    declared_mib: int | None = None  # host memory that its envelope asks for
    attested: str = "unknown"  # attested, unknown, or wrong
    attested_why: str = ""
    is_proven: bool = True  # its server gave a right answer lately

    @property
    def drifted_files(self) -> int | None:
        """How many of its server's files are not as sealed; None if they were not compared."""
        return len(self.server.drift) if self.server and self.server.drift_checked_at else None

    @property
    def is_unproven(self) -> bool:
        """Whether its server gets traffic and gave no right answer lately."""
        return self.server is not None and self.server.is_serving and not self.is_proven

    @property
    def measured_mib(self) -> int | None:
        """What its server holds, as its agent measured last; None where it did not."""
        size = self.server.memory_bytes if self.server is not None else None
        return None if size is None else round(size / 2**20)


@dataclass(frozen=True)
class NodeView:
    """A node. None in `known` is unknown, never “none” or “ok”. `held`: its replicas, the newest first."""

    node: Node
    known: NodeFacts
    is_silent: bool
    containment: str
    contained: str
    gpus_unknown: str
    gpus_read: GpuReading | None
    gpus_read_why_not: str  # nothing is known of their state; empty where it is
    held: list[OnNode] = field(default_factory=list)

    @property
    def static(self) -> Mapping[str, str]:
        """`address` and `loads` of the server that somebody else runs, for which the node stands; empty of a machine with an agent."""
        return self.node.facts.get("static") or {}

    @property
    def runtimes(self) -> list[dict[str, Any]]:
        """Its runtime images, each with the states of its server and backends."""
        return runtimes_with_states(self.node)

    @property
    def missing(self) -> str:
        """Why a server kind, or all, cannot run there, as its agent reports it; or empty."""
        return str(self.node.facts.get("missing", ""))

    @property
    def replica_count(self) -> int:
        return len(self.held)

    @property
    def images(self) -> list[str]:
        """Its runtime images, each `name@digest`."""
        return [own["image"] for own in self.node.runtimes]

    @property
    def declared_mib(self) -> int:
        """Host memory that the envelopes of its replicas ask for, as far as the asker may read them."""
        return sum(one.declared_mib or 0 for one in self.held)

    @property
    def undeclared(self) -> int:
        """How many of its replicas declare no memory to the asker."""
        return sum(one.declared_mib is None for one in self.held)

    @property
    def measured_mib(self) -> int | None:
        """Memory that its servers hold; None if a server was not measured."""
        measured = [one.measured_mib for one in self.held]
        return None if None in measured else sum(size or 0 for size in measured)

    @property
    def gpus_read_at(self) -> datetime | None:
        return datetime.fromtimestamp(self.gpus_read.at_s, UTC) if self.gpus_read else None

    @property
    def gpu_faults(self) -> list[str]:
        """Faults of its GPUs' hardware that were read; half sentences."""
        read = self.gpus_read.gpus if self.gpus_read else ()
        return [f"{gpu.uuid}: {fault}" for gpu in read for fault in gpu.faults]

    @property
    def state(self) -> str:
        """silent or reachable."""
        return "silent" if self.is_silent else "reachable"


def fleet_of(actor: Actor, *, now: datetime | None = None) -> list[NodeView]:
    """Every node by name, with its replicas. Six queries, however many there are."""
    now = now or timezone.now()
    mine = set(visible_models(actor).values_list("pk", flat=True))
    replicas = list(live_replicas().order_by("-pk"))
    servers: dict[int, Server] = {}
    for server in current_servers().filter(replica__in=[one.pk for one in replicas]):
        servers.setdefault(server.replica_id, server)  # the newest
    manifests = manifests_of({one.release_id for one in replicas if one.release.model_id in mine})
    wrong = wrong_signatures({one.release_id: one.release for one in replicas}.values()) if replicas else {}
    held: dict[str, list[OnNode]] = {}
    for one in replicas:
        told = _on_node(one, servers.get(one.pk), mine, manifests)
        state, why = attested(told.server, one.release, wrong.get(one.release_id))
        proven = told.server is None or is_proven(told.server, one.release.model.objectives, now)
        held.setdefault(one.node_id, []).append(replace(told, attested=state, attested_why=why, is_proven=proven))
    return [_view(node, held.get(node.name, []), now) for node in nodes()]


def attested(server: Server | None, release: Release, wrong: str | None) -> tuple[str, str]:
    """(attested, wrong or unknown, why as a sentence): whether what runs is what was signed. `wrong`: why the release's signature does
    not hold, empty where it does, None where there is none."""
    if server is None:
        return "unknown", "No server runs."
    if not server.pid:
        return "unknown", "Somebody else runs its server: what that serves cannot be proven from here."
    if not server.digest:
        return "unknown", "It was started before agents wrote down what they verified."
    if server.digest != release.digest:
        return "wrong", f"Its files were verified against {server.digest}, and the release is {release.digest}."
    if server.drift:
        return "wrong", "Its files are no longer those that were verified as it started."
    if wrong is None:
        return "unknown", "Its files were verified as it started, but nobody signed the release."
    if wrong:
        return "wrong", wrong
    return (
        "attested",
        "Each file was verified as it started, against the digest that a key of this installation signed.",
    )


def _on_node(one: Replica, server: Server | None, mine: set[int], manifests: Mapping[Any, str]) -> OnNode:
    if one.release.model_id not in mine:
        return OnNode(one, server)
    envelope = json.loads(manifests.get(one.release_id) or "{}").get("envelope") or {}
    asked = (envelope.get("host") or {}).get("memory_mib_min")
    declared = asked if isinstance(asked, int) and not isinstance(asked, bool) else None
    return OnNode(one, server, one.release.model.slug, one.release.name, one.release.number, declared)


def _view(node: Node, held: list[OnNode], now: datetime) -> NodeView:
    known = from_agent(node.facts)
    why = str(node.facts.get("gpus_unknown") or "its agent did not say") if known.gpus is None else ""
    is_silent = not is_reporting(node, now)
    contained = of_facts(node.facts)
    reading = reading_of(node.gpus)
    return NodeView(
        node, known, is_silent, contained.value, contained.sentence, why, reading, why_unread(reading, now), held,
    )  # fmt: skip


def why_unread(reading: GpuReading | None, now: datetime) -> str:
    """Why a node's GPUs are unknown now; empty if the reading holds."""
    if reading is None:
        return "its agent has read none"
    if now.timestamp() - reading.at_s > SILENT_AFTER.total_seconds():
        return "its agent, or its driver, has not answered since"
    return reading.unknown
