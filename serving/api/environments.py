"""REST views of environments, with the rules for entering them, of servers and of runtimes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import (
    CharField,
    ChoiceField,
    DictField,
    IntegerField,
    ModelSerializer,
    SerializerMethodField,
)
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH, PlainText, StrictSerializer, actor_of, expected_version, read_body
from accounts.api.responses import OnePage, versioned
from accounts.api.shapes import Shape, described
from accounts.core.access import Actor
from registry.queries import visible_models
from serving.api.capabilities import StateField
from serving.api.gateways import GatewayOut
from serving.environments.actions.environments import change_environment, create_environment
from serving.environments.core.platforms import PlatformKind
from serving.models import Environment, Route, Server
from serving.targets import queries
from serving.targets.core.containment import of_facts
from serving.targets.queries.runtimes import runtimes_with_states
from serving.traffic.queries.forced_key import shown_forced_key
from serving.traffic.queries.readiness import readiness_from


class RuntimeStatesOut(Shape):
    server = StateField()
    backends = DictField(child=StateField())


class RuntimeOut(Shape):
    """A runtime image that a node can run; a release names one of them by its digest."""

    image: str = described("name@sha256:…")
    server: str
    backends: list[str]
    versions: dict[str, str]
    states: RuntimeStatesOut = described("whether Sluicegate was run with this server and these backends")
    node: str
    containment: str = described("contained, not contained, or unknown")
    contained: str = described("the same as a sentence")
    seen_at: datetime | None = described("when the node's agent last said that it is there")


class RuntimesPage(OnePage):
    results: list[RuntimeOut]


class ServerOut(ModelSerializer[Server]):
    replica = IntegerField(source="replica_id")
    model = CharField(source="replica.release.model.slug")
    release = CharField(source="replica.release.name")
    digest = CharField(source="replica.release.digest")
    environment = CharField(source="replica.environment.slug")
    node = CharField(source="replica.node_id")
    state = CharField(source="replica.state", help_text="of its replica")
    recoveries = IntegerField(source="replica.recoveries")

    class Meta:
        model = Server
        fields = [
            "id",
            "replica",
            "model",
            "release",
            "digest",
            "environment",
            "node",
            "state",
            "recoveries",
            "host",
            "http_port",
            "grpc_port",
            "metrics_port",
            "pid",
            "is_serving",
            "started_at",
            "probed_at",
            "drift_checked_at",
            "drift",
        ]


class AckOut(Shape):
    gateway = CharField(source="gateway.name")
    generation: int
    acked_at: datetime
    error: str = described("why the gateway refused it, or empty")


class RouteHealthOut(Shape):
    state: str = described(
        "healthy; lost: no server of stable is known to answer; unhealthy: some do not answer; drifted: files are not "
        "as sealed; unproven: some gave no right answer lately; asleep or waking"
    )
    answering: int = described("servers of stable that answer and gave a right answer lately")
    wanted: int = described("servers that stable should have")
    silent_nodes: list[str] = described("nodes of these servers whose agent does not report")


class RouteOut(ModelSerializer[Route]):
    model = CharField(source="model.slug")
    stable = CharField(source="stable.name")
    candidate = CharField(source="candidate.name", default=None, allow_null=True)
    acks = AckOut(many=True)
    health = SerializerMethodField()

    @extend_schema_field(RouteHealthOut)
    def get_health(self, row: Route) -> dict[str, Any]:
        there = readiness_from(row.health)  # type: ignore[attr-defined]
        state = row.sleep or (there.state if there is not None else "lost")  # type: ignore[attr-defined]
        answering, wanted, silent = (there.proven, there.wanted, there.silent) if there is not None else (0, 0, ())
        return {"state": state, "answering": answering, "wanted": wanted, "silent_nodes": list(silent)}

    class Meta:
        model = Route
        fields = ["model", "stable", "candidate", "candidate_bp", "generation", "changed_at", "acks", "health"]


class EnvironmentOut(ModelSerializer[Environment]):
    gateways = GatewayOut(many=True)
    routes = RouteOut(many=True)
    forced_release_key = SerializerMethodField(
        help_text="for administrators: a request that forces a release shows it in x-sluicegate-release-key; else null"
    )

    def get_forced_release_key(self, row: Environment) -> str | None:
        actor = self.context.get("actor")
        return (shown_forced_key(actor, row) or None) if actor is not None else None

    class Meta:
        model = Environment
        fields = [
            "slug",
            "title",
            "platform",
            "is_routed",
            "needs_passed_report",
            "needs_approval",
            "allows_forced_release",
            "forced_release_key",
            "generation",
            "version",
            "retired_at",
            "retired_by",
            "retire_reason",
            "gateways",
            "routes",
        ]


def _shown(slug: str, actor: Actor) -> EnvironmentOut:
    row = queries.get_environment_with_routes(slug, visible_models(actor))
    return EnvironmentOut(row, context={"actor": actor})


class EnvironmentChange(StrictSerializer):
    title = PlainText(required=False)
    platform = ChoiceField(
        choices=list(PlatformKind),
        required=False,
        help_text="local: our agent starts servers on its machine; static: servers that their owner runs. It changes only while "
        "nothing runs there",
    )
    needs_passed_report: bool = described("a rollout starts only with a passed report", required=False)
    needs_approval: bool = described(
        "every rollout waits for an approval at its start; on by default in a new environment with a gateway",
        required=False,
    )
    allows_forced_release: bool = described(
        "a request that shows the key may choose its release by x-sluicegate-release", required=False
    )


class EnvironmentIn(EnvironmentChange):
    slug = PlainText()
    is_routed: bool = described("false: no gateway; gates talk to its servers directly", default=True)


@extend_schema_view(
    get=extend_schema(parameters=[OpenApiParameter("retired", bool, description="also those that are retired")])
)
class EnvironmentsView(generics.ListAPIView[Environment]):
    """The environments, each with its gateways and routes."""

    serializer_class = EnvironmentOut
    pagination_ordering = "slug"

    def get_queryset(self) -> Any:
        is_all = self.request.query_params.get("retired", "") in {"1", "true", "yes"}
        return queries.environments(visible_models(actor_of(self.request)), with_retired=is_all)

    @extend_schema(request=EnvironmentIn, responses={201: EnvironmentOut})
    def post(self, request: Request) -> Response:
        """Makes an environment. For administrators."""
        row = create_environment(actor=actor_of(request), **read_body(EnvironmentIn, request))
        return versioned(EnvironmentOut(row), 201)


class EnvironmentView(APIView):
    @extend_schema(operation_id="environments_retrieve", responses=EnvironmentOut)
    def get(self, request: Request, slug: str) -> Response:
        """One environment with its gateways and routes."""
        return versioned(_shown(slug, actor_of(request)))

    @extend_schema(
        operation_id="environments_change", parameters=[IF_MATCH], request=EnvironmentChange, responses=EnvironmentOut
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Changes the rules for entering it. For administrators."""
        actor = actor_of(request)
        change_environment(
            actor=actor,
            environment=queries.get_environment(slug),
            expected_version=expected_version(request),
            changes=read_body(EnvironmentChange, request),
        )
        return versioned(_shown(slug, actor))


class ServersView(generics.ListAPIView[Server]):
    """The servers that are not over, of models that the caller may see, the newest first."""

    serializer_class = ServerOut

    def get_queryset(self) -> Any:
        return queries.current_servers().filter(replica__release__model__in=visible_models(actor_of(self.request)))


class RuntimesView(APIView):
    @extend_schema(operation_id="runtimes_list", responses=RuntimesPage)
    def get(self, request: Request) -> Response:
        """Every runtime image of every node: a handful, so there is one page."""
        found = [
            {
                **own,
                "node": node.name,
                "containment": (contained := of_facts(node.facts)).value,
                "contained": contained.sentence,
                "seen_at": node.seen_at,
            }
            for node in queries.nodes()
            for own in runtimes_with_states(node)
        ]
        return Response(RuntimesPage({"results": found}).data)
