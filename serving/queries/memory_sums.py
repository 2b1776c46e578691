"""What deployments hold and ask for, summed by the database: however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import (
    BigIntegerField,
    Count,
    Func,
    JSONField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    TextField,
    Value,
)
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce, JSONObject, NullIf

from accounts.core.access import Actor
from registry.queries import visible_models
from serving.models import Node
from serving.queries.deployments import current_servers, live_deployments, nodes


@dataclass(frozen=True)
class NodeSums:
    """What all deployments of a node come to. What their envelopes ask for is of those that the asker may read."""

    deployments: int = 0
    staying: int = 0  # that are to stay
    draining: int = 0  # that somebody asked to be drained
    measured: int = 0  # of whose servers the memory is known
    held_bytes: int = 0  # of those
    undeclared: int = 0  # of which nothing is known to be declared
    declared_mib: int = 0  # by the others

    @property
    def measured_mib(self) -> int | None:
        """What the servers that were measured hold together; None where none was."""
        return round(self.held_bytes / 2**20) if self.measured else None

    @property
    def whole_mib(self) -> int | None:
        """The same where all of them were measured: 0 where there is none."""
        return round(self.held_bytes / 2**20) if self.measured == self.deployments else None


def with_memory() -> QuerySet[Any]:
    """Deployments that are not gone: `held`, the bytes of the newest server (None: not measured), and `asked`, the host memory in
    MiB that the envelope asks for (None: nothing). In no order."""
    newest = current_servers().filter(deployment=OuterRef("pk")).values("memory_bytes")[:1]
    manifest = Cast(NullIf("release__manifest", Value("")), JSONField())
    asked = KeyTextTransform("memory_mib_min", KeyTransform("host", KeyTransform("envelope", manifest)))
    number = Func(asked, Value("^[0-9]{1,15}$"), function="SUBSTRING", output_field=TextField())
    return live_deployments().order_by().annotate(held=Subquery(newest), asked=Cast(number, BigIntegerField()))


def nodes_with_sums(actor: Actor) -> Iterator[tuple[Node, NodeSums]]:
    """Every node by name, with what its deployments come to. One query."""
    is_told = Q(release__model__in=visible_models(actor).order_by().values("pk"), asked__isnull=False)
    sums = JSONObject(
        deployments=Count("pk"),
        staying=Count("pk", filter=Q(is_wanted=True)),
        draining=Count("pk", filter=Q(drain_asked_at__isnull=False)),
        measured=Count("held"),
        held_bytes=Coalesce(Sum("held"), 0),
        undeclared=Count("pk", filter=~is_told),
        declared_mib=Coalesce(Sum("asked", filter=is_told), 0),
    )
    of_it = with_memory().filter(node=OuterRef("pk")).values("node_id").annotate(sums=sums).values("sums")
    for node in nodes().annotate(sums=Subquery(of_it)):
        yield node, NodeSums(**(node.sums or {}))
