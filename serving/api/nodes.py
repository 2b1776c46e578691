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
from serving.api.gpus import GpusOut, gpus_row
from serving.queries.fleet import NodeView, OnNode, fleet_of


class OnNodeOut(serializers.Serializer[Any]):
    """A deployment; which one is told to those who may read its model."""

    deployment = serializers.IntegerField()
    model = serializers.CharField(allow_blank=True)
    release = serializers.CharField(allow_blank=True)
    environment = serializers.CharField()
    state = serializers.CharField()
    is_serving = serializers.BooleanField(
        help_text="its server answered a real inference and is not known to be broken"
    )
    recoveries = serializers.IntegerField()
    probed_at = serializers.DateTimeField(allow_null=True)
    drifted_files = serializers.IntegerField(allow_null=True, help_text="null: not compared yet")
    declared_memory_mib = serializers.IntegerField(allow_null=True)
    measured_memory_mib = serializers.IntegerField(
        allow_null=True, help_text="of its server's processes; null: unknown"
    )
    attested = serializers.ChoiceField(
        choices=["attested", "wrong", "unknown"], help_text="whether the server runs what was signed"
    )
    attested_why = serializers.CharField()
    drain_asked_at = serializers.DateTimeField(allow_null=True)


class NodeOut(serializers.Serializer[Any]):
    """A machine with an agent. Null is unknown, never none."""

    name = serializers.CharField()
    state = serializers.ChoiceField(choices=["reachable", "silent"])
    seen_at = serializers.DateTimeField(allow_null=True)
    cpu_cores = serializers.FloatField(allow_null=True)
    memory_mib = serializers.IntegerField(allow_null=True)
    declared_memory_mib = serializers.IntegerField(help_text="what the envelopes that you may read ask for, summed")
    disk_mib = serializers.IntegerField(allow_null=True)
    gpus = serializers.ListField(child=serializers.CharField(), allow_null=True, help_text="empty: none; null: unknown")
    gpus_read = GpusOut(help_text="what the GPUs said last")
    driver = serializers.CharField(allow_null=True)
    containment = serializers.CharField()
    static_server = serializers.CharField(
        allow_null=True,
        help_text="address:HTTP port:gRPC port of the server that somebody else runs, for which the node stands; null: its "
        "agent starts servers",
    )
    runtimes = serializers.ListField(child=serializers.CharField(), help_text="image@digest")
    measured_memory_mib = serializers.IntegerField(
        allow_null=True, help_text="what all its servers hold; null: not all of them were measured"
    )
    deployment_count = serializers.IntegerField(help_text="all of them")
    deployments = OnNodeOut(many=True, help_text="the newest first")


class NodesPage(OnePage):
    results = NodeOut(many=True)


class NodesView(APIView):
    @extend_schema(operation_id="nodes_list", responses=NodesPage)
    def get(self, request: Request) -> Response:
        """Every node with what runs on it: a handful, so there is one page."""
        found = [_node_row(one) for one in fleet_of(actor_of(request))]
        return Response(NodesPage({"results": found}).data)


def _node_row(one: NodeView) -> dict[str, Any]:
    node, known = one.node, one.known
    return {
        **{name: getattr(node, name) for name in ("name", "seen_at")},
        "state": one.state, "cpu_cores": known.cpu_cores,
        "memory_mib": known.memory_mib, "declared_memory_mib": one.declared_mib, "disk_mib": known.disk_mib,
        "gpus": None if known.gpus is None else list(known.gpus), "gpus_read": gpus_row(one), "driver": known.driver,
        "containment": one.containment, "static_server": one.static.get("address"), "runtimes": [own["image"] for own in node.runtimes],
        "measured_memory_mib": one.measured_mib, "deployment_count": len(one.held),
        "deployments": [_on(held) for held in one.held],
    }  # fmt: skip


def _on(held: OnNode) -> dict[str, Any]:
    deployment, server = held.deployment, held.server
    return {
        "deployment": deployment.pk, "model": held.model, "release": held.release,
        "environment": deployment.environment.slug, "state": deployment.state, "recoveries": deployment.recoveries,
        "is_serving": server is not None and server.is_serving, "probed_at": server.probed_at if server else None,
        "drifted_files": len(server.drift) if server and server.drift_checked_at else None,
        "declared_memory_mib": held.declared_mib, "measured_memory_mib": held.measured_mib,
        "attested": held.attested, "attested_why": held.attested_why, "drain_asked_at": deployment.drain_asked_at,
    }  # fmt: skip
