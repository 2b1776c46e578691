"""REST view of nodes."""

from __future__ import annotations

from datetime import datetime

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, ChoiceField, IntegerField
from rest_framework.views import APIView

from accounts.api.requests import (
    actor_of,
)
from accounts.api.responses import OnePage
from accounts.api.shapes import Shape, described
from serving.api.gpus import GpusOut
from serving.targets.queries.fleet import fleet_of


class OnNodeOut(Shape):
    """A replica; which one is told to those who may read its model."""

    replica = IntegerField(source="replica.pk")
    model: str
    release: str
    environment = CharField(source="replica.environment.slug")
    state = CharField(source="replica.state")
    is_serving: bool = described(
        "its server answered a real inference and is not known to be broken", source="server.is_serving", default=False
    )
    recoveries = IntegerField(source="replica.recoveries")
    probed_at: datetime | None = described(source="server.probed_at", default=None)
    drifted_files: int | None = described("null: not compared yet")
    declared_memory_mib: int | None = described(source="declared_mib")
    measured_memory_mib: int | None = described("of its server's processes; null: unknown", source="measured_mib")
    attested = ChoiceField(
        choices=["attested", "wrong", "unknown"], help_text="whether the server runs what was signed"
    )
    attested_why: str
    drain_asked_at: datetime | None = described(source="replica.drain_asked_at")


class NodeOut(Shape):
    """A machine with an agent. Null is unknown, never none."""

    name = CharField(source="node.name")
    state = ChoiceField(choices=["reachable", "silent"])
    seen_at: datetime | None = described(source="node.seen_at")
    cpu_cores: float | None = described(source="known.cpu_cores")
    memory_mib: int | None = described(source="known.memory_mib")
    declared_memory_mib: int = described("what the envelopes that you may read ask for, summed", source="declared_mib")
    disk_mib: int | None = described(source="known.disk_mib")
    gpus: list[str] | None = described("empty: none; null: unknown", source="known.gpus")
    gpus_read: GpusOut = described("what the GPUs said last", source="*")
    driver: str | None = described(source="known.driver")
    containment: str
    static_server: str | None = described(
        "address:HTTP port:gRPC port of the server that somebody else runs, for which the node stands; null: its "
        "agent starts servers",
        source="static.address",
        default=None,
    )
    runtimes: list[str] = described("image@digest", source="images")
    measured_memory_mib: int | None = described(
        "what all its servers hold; null: not all of them were measured", source="measured_mib"
    )
    replica_count: int = described("all of them")
    replicas: list[OnNodeOut] = described("the newest first", source="held")


class NodesPage(OnePage):
    results: list[NodeOut]


class NodesView(APIView):
    @extend_schema(operation_id="nodes_list", responses=NodesPage)
    def get(self, request: Request) -> Response:
        """Every node with what runs on it: a handful, so there is one page."""
        return Response(NodesPage({"results": fleet_of(actor_of(request))}).data)
