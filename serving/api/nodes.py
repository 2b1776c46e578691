"""REST view of nodes."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import (
    actor_of,
)
from accounts.api.responses import OnePage
from serving.api.gpus import GpusOut
from serving.targets.queries.fleet import fleet_of


class OnNodeOut(serializers.Serializer[Any]):
    """A replica; which one is told to those who may read its model."""

    replica = serializers.IntegerField(source="replica.pk")
    model = serializers.CharField(allow_blank=True)
    release = serializers.CharField(allow_blank=True)
    environment = serializers.CharField(source="replica.environment.slug")
    state = serializers.CharField(source="replica.state")
    is_serving = serializers.BooleanField(
        source="server.is_serving",
        default=False,
        help_text="its server answered a real inference and is not known to be broken",
    )
    recoveries = serializers.IntegerField(source="replica.recoveries")
    probed_at = serializers.DateTimeField(source="server.probed_at", default=None, allow_null=True)
    drifted_files = serializers.IntegerField(allow_null=True, help_text="null: not compared yet")
    declared_memory_mib = serializers.IntegerField(source="declared_mib", allow_null=True)
    measured_memory_mib = serializers.IntegerField(
        source="measured_mib", allow_null=True, help_text="of its server's processes; null: unknown"
    )
    attested = serializers.ChoiceField(
        choices=["attested", "wrong", "unknown"], help_text="whether the server runs what was signed"
    )
    attested_why = serializers.CharField()
    drain_asked_at = serializers.DateTimeField(source="replica.drain_asked_at", allow_null=True)


class NodeOut(serializers.Serializer[Any]):
    """A machine with an agent. Null is unknown, never none."""

    name = serializers.CharField(source="node.name")
    state = serializers.ChoiceField(choices=["reachable", "silent"])
    seen_at = serializers.DateTimeField(source="node.seen_at", allow_null=True)
    cpu_cores = serializers.FloatField(source="known.cpu_cores", allow_null=True)
    memory_mib = serializers.IntegerField(source="known.memory_mib", allow_null=True)
    declared_memory_mib = serializers.IntegerField(
        source="declared_mib", help_text="what the envelopes that you may read ask for, summed"
    )
    disk_mib = serializers.IntegerField(source="known.disk_mib", allow_null=True)
    gpus = serializers.ListField(
        source="known.gpus", child=serializers.CharField(), allow_null=True, help_text="empty: none; null: unknown"
    )
    gpus_read = GpusOut(source="*", help_text="what the GPUs said last")
    driver = serializers.CharField(source="known.driver", allow_null=True)
    containment = serializers.CharField()
    static_server = serializers.CharField(
        source="static.address",
        default=None,
        allow_null=True,
        help_text="address:HTTP port:gRPC port of the server that somebody else runs, for which the node stands; null: its "
        "agent starts servers",
    )
    runtimes = serializers.ListField(source="images", child=serializers.CharField(), help_text="image@digest")
    measured_memory_mib = serializers.IntegerField(
        source="measured_mib",
        allow_null=True,
        help_text="what all its servers hold; null: not all of them were measured",
    )
    replica_count = serializers.IntegerField(help_text="all of them")
    replicas = OnNodeOut(source="held", many=True, help_text="the newest first")


class NodesPage(OnePage):
    results = NodeOut(many=True)


class NodesView(APIView):
    @extend_schema(operation_id="nodes_list", responses=NodesPage)
    def get(self, request: Request) -> Response:
        """Every node with what runs on it: a handful, so there is one page."""
        return Response(NodesPage({"results": fleet_of(actor_of(request))}).data)
