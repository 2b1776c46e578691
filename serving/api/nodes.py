"""REST views of nodes: the list, keeping new deployments off one, and emptying it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import (
    IF_MATCH,
    IF_MATCH_OR_ANY,
    StrictSerializer,
    actor_of,
    expected_version,
    read_body,
    version_or_any,
)
from accounts.api.responses import OnePage, versioned
from accounts.core.access import EVERY_TEAM, Actor, Verb, require
from serving.actions.draining import drain_node, drain_one
from serving.actions.nodes import LONGEST_REASON, cordon_node, uncordon_node
from serving.actions.removing import remove_node
from serving.api.gpus import GpusOut, gpus_row
from serving.api.plans import PlannedIn, PlanOut
from serving.core.draining import Fate
from serving.models import Node
from serving.queries import get_node
from serving.queries.draining import DrainStep, deployment_on, deployments_on, digest_of_drain, drain_plan
from serving.queries.fleet import MOST_DEPLOYMENTS, NodeView, OnNode, fleet_of
from serving.queries.model_memory import memory_of_models


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
    version = serializers.IntegerField(help_text="for If-Match")
    state = serializers.ChoiceField(choices=["reachable", "silent", "cordoned"])
    seen_at = serializers.DateTimeField(allow_null=True)
    cordoned_at = serializers.DateTimeField(allow_null=True)
    cordoned_by = serializers.CharField(allow_blank=True)
    cordon_reason = serializers.CharField(allow_blank=True)
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
    deployments = OnNodeOut(many=True, help_text=f"the newest of each node, {MOST_DEPLOYMENTS} of all nodes at most")


class NodesPage(OnePage):
    results = NodeOut(many=True)


class CordonIn(StrictSerializer):
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)


class NodesView(APIView):
    @extend_schema(operation_id="nodes_list", responses=NodesPage)
    def get(self, request: Request) -> Response:
        """Every node with what runs on it: a handful, so there is one page."""
        found = [_node_row(one) for one in fleet_of(actor_of(request))]
        return Response(NodesPage({"results": found}).data)


class ModelMemoryOut(serializers.Serializer[Any]):
    """What the servers of a model hold in an environment, on all nodes. All that you may not read is one, without a name."""

    model = serializers.CharField(allow_blank=True)
    environment = serializers.CharField()
    servers = serializers.IntegerField()
    measured_mib = serializers.IntegerField(allow_null=True, help_text="null: not all of them were measured")
    declared_mib = serializers.IntegerField(help_text="what the envelopes that you may read ask for, summed")


class ModelMemoryPage(OnePage):
    results = ModelMemoryOut(many=True)


class MemoryView(APIView):
    @extend_schema(operation_id="nodes_memory_list", responses=ModelMemoryPage)
    def get(self, request: Request) -> Response:
        """Models by the memory that they hold, the most first. Those that sleep hold nothing and are not listed."""
        found = [one for one in memory_of_models(actor_of(request)) if one.servers]
        return Response(ModelMemoryPage({"results": found}).data)


class CordonView(APIView):
    @extend_schema(operation_id="nodes_cordon", request=CordonIn, responses=NodeOut, parameters=[IF_MATCH_OR_ANY])
    def post(self, request: Request, name: str) -> Response:
        """No new deployment is placed on the node; those that it has stay. Takes an administrator."""
        actor, data = actor_of(request), read_body(CordonIn, request)
        version = version_or_any(request)
        return node_answer(actor, cordon_node(actor=actor, node=get_node(name), expected_version=version, **data))


class UncordonView(APIView):
    @extend_schema(operation_id="nodes_uncordon", request=CordonIn, responses=NodeOut, parameters=[IF_MATCH])
    def post(self, request: Request, name: str) -> Response:
        """The node may be given deployments again."""
        actor, data = actor_of(request), read_body(CordonIn, request)
        version = expected_version(request)
        return node_answer(actor, uncordon_node(actor=actor, node=get_node(name), expected_version=version, **data))


class RemovedOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    removed_at = serializers.DateTimeField()


class RemoveView(APIView):
    @extend_schema(operation_id="nodes_remove", request=CordonIn, responses=RemovedOut, parameters=[IF_MATCH_OR_ANY])
    def post(self, request: Request, name: str) -> Response:
        """Takes a node off the list that is empty, or that is lost and has nothing that is wanted. Takes an administrator."""
        actor, data = actor_of(request), read_body(CordonIn, request)
        version = version_or_any(request)
        return Response(
            RemovedOut(remove_node(actor=actor, node=get_node(name), expected_version=version, **data)).data
        )


class DrainIn(PlannedIn):
    deployment = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=1, max_value=2**63 - 1, help_text="this one alone"
    )


class DrainStepOut(serializers.Serializer[Any]):
    deployment = serializers.IntegerField()
    fate = serializers.ChoiceField(choices=[one.value for one in Fate])
    says = serializers.CharField()
    serves_users = serializers.BooleanField()


class DrainOut(PlanOut):
    """What becomes of each deployment of the node that is drained."""

    node = serializers.CharField()
    steps = DrainStepOut(many=True)


class DrainView(APIView):
    @extend_schema(
        operation_id="nodes_drain_plan",
        responses=DrainOut,
        parameters=[OpenApiParameter("deployment", int, description="this one alone")],
    )
    def get(self, request: Request, name: str) -> Response:
        """What draining the node would do now. Takes an administrator."""
        require(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
        node, one = get_node(name), request.query_params.get("deployment", "")
        return _drained(name, drain_plan([deployment_on(node, one)] if one else deployments_on(node)))

    @extend_schema(operation_id="nodes_drain", request=DrainIn, responses=DrainOut, parameters=[IF_MATCH_OR_ANY])
    def post(self, request: Request, name: str) -> Response:
        """Cordons the node and empties it: what nothing needs stops, what serves users is started elsewhere first, the rest waits."""
        actor, data = actor_of(request), read_body(DrainIn, request)
        version, node, one = version_or_any(request), get_node(name), data.pop("deployment")
        if one is not None:
            return _drained(name, [drain_one(actor=actor, deployment=deployment_on(node, one), **data)])
        return _drained(name, drain_node(actor=actor, node=node, expected_version=version, **data))


def _drained(name: str, steps: Sequence[DrainStep]) -> Response:
    rows = [
        {"deployment": one.deployment.pk, "fate": one.fate, "says": one.says, "serves_users": one.serves_users}
        for one in steps
    ]
    return Response(DrainOut({"node": name, "steps": rows, "plan_digest": digest_of_drain(steps)}).data)


def node_answer(actor: Actor, node: Node) -> Response:
    return versioned(NodeOut(next(_node_row(one) for one in fleet_of(actor) if one.node.name == node.name)))


def _node_row(one: NodeView) -> dict[str, Any]:
    node, known = one.node, one.known
    return {
        **{name: getattr(node, name) for name in ("name", "version", "seen_at", "cordoned_at", "cordoned_by")},
        "cordon_reason": node.cordon_reason, "state": one.state, "cpu_cores": known.cpu_cores,
        "memory_mib": known.memory_mib, "declared_memory_mib": one.sums.declared_mib, "disk_mib": known.disk_mib,
        "gpus": None if known.gpus is None else list(known.gpus), "gpus_read": gpus_row(one), "driver": known.driver,
        "containment": one.containment, "static_server": one.static.get("address"), "runtimes": [own["image"] for own in node.runtimes],
        "measured_memory_mib": one.sums.whole_mib, "deployment_count": one.sums.deployments,
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
