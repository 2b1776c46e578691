"""REST views of gateways: the list, registering one, taking users from it, and taking it off the list."""

from __future__ import annotations

from django.conf import settings
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import (
    CharField,
    ChoiceField,
    IntegerField,
    JSONField,
    ModelSerializer,
    SerializerMethodField,
)
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OR_ANY, PlainText, StrictSerializer, actor_of, read_body, version_or_any
from accounts.api.responses import OnePage, versioned
from accounts.api.shapes import described
from ledger.core.errors import Invalid
from ledger.queries import clock
from serving.environments.core.reasons import LONGEST_REASON
from serving.models import Gateway
from serving.targets import queries
from serving.traffic.actions.gateways import add_gateway, drain_gateway, remove_gateway, resume_gateway
from serving.traffic.core.gateway_setup import GatewaySetup
from serving.traffic.core.gateway_standing import Standing, standing_of
from serving.traffic.queries.gateways import gateway_states, get_gateway


class GatewayOut(ModelSerializer[Gateway]):
    environment = CharField(source="environment.slug")
    state = SerializerMethodField(
        help_text="drained: it answers, and says that it is not ready; silent: no control plane has heard of it for 10 s"
    )

    class Meta:
        model = Gateway
        fields = [
            "name",
            "environment",
            "version",
            "state",
            "http_url",
            "grpc_address",
            "seen_at",
            "drained_at",
            "drained_by",
            "drain_reason",
        ]

    @extend_schema_field(ChoiceField(choices=[one.value for one in Standing]))
    def get_state(self, gateway: Gateway) -> str:
        return standing_of(gateway.seen_at, gateway.drained_at, clock.now())


class GatewayStateOut(GatewayOut):
    routes = IntegerField(help_text="of its environment")
    acknowledged = IntegerField(help_text="of them, those that it follows as they are written")
    refused = IntegerField(help_text="of them, those that it refused")

    class Meta(GatewayOut.Meta):
        fields = [*GatewayOut.Meta.fields, "routes", "acknowledged", "refused"]


class GatewaysPage(OnePage):
    results: list[GatewayStateOut]


class GatewayIn(StrictSerializer):
    name = PlainText(help_text="its xDS node id, which its certificate must carry")
    environment = PlainText()
    http_url = PlainText(help_text="where it listens for HTTP: http://host:port")
    grpc_address = PlainText(help_text="where it listens for gRPC: host:port; it may be the same")
    control_planes = PlainText(required=False, help_text="their addresses, with commas between them")
    admin = PlainText(required=False, help_text="where its Envoy's admin interface listens: unix:/path, of its machine")
    counters = PlainText(
        required=False, help_text="host:port where engines on other machines read its counters, over TLS"
    )
    relay = PlainText(required=False, help_text="unix:/path of its relay, which keeps its last snapshot")
    certificate = PlainText(required=False, help_text="a file on the gateway's machine, as the two below")
    key = PlainText(required=False)
    authority = PlainText(required=False, help_text="who signed the control plane's certificate")
    heap_mib: int | None = described("memory that its Envoy may hold", required=False, min_value=1, max_value=2**24)


class GatewayAddedOut(GatewayOut):
    envoy = JSONField(help_text="the configuration to start its Envoy with: envoy -c FILE")

    class Meta(GatewayOut.Meta):
        fields = [*GatewayOut.Meta.fields, "envoy"]


class GatewaysView(APIView):
    @extend_schema(operation_id="gateways_list", responses=GatewaysPage)
    def get(self, request: Request) -> Response:
        """Every gateway, and how far it is with the routes of its environment: a handful, so there is one page."""
        found = [
            {
                **GatewayOut(one.gateway).data,
                "routes": one.routes,
                "acknowledged": one.acknowledged,
                "refused": one.errors,
            }
            for one in gateway_states()
        ]
        return Response({"next": None, "previous": None, "results": found})

    @extend_schema(operation_id="gateways_add", request=GatewayIn, responses={201: GatewayAddedOut})
    def post(self, request: Request) -> Response:
        """Registers a gateway, or changes where a known one is. Takes an administrator."""
        actor, data = actor_of(request), read_body(GatewayIn, request)
        environment, http_url, grpc_address = (data.pop(name) for name in ("environment", "http_url", "grpc_address"))
        try:
            setup = GatewaySetup(**{"control_planes": settings.XDS_ADDRESS, **data})
        except ValueError as error:
            raise Invalid("gateway_setup", str(error)) from None
        gateway, envoy = add_gateway(
            actor=actor,
            environment=queries.get_environment(environment),
            setup=setup,
            http_url=http_url,
            grpc_address=grpc_address,
        )
        gateway.envoy = envoy  # type: ignore[attr-defined]
        return versioned(GatewayAddedOut(gateway), 201)


class GatewayVerbIn(StrictSerializer):
    reason = CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)


class GatewayDrainIn(GatewayVerbIn):
    is_confirmed: bool = described(
        "needed where no other gateway of its environment is ready", required=False, default=False
    )


class GatewayDrainView(APIView):
    @extend_schema(
        operation_id="gateways_drain", request=GatewayDrainIn, responses=GatewayOut, parameters=[IF_MATCH_OR_ANY]
    )
    def post(self, request: Request, name: str) -> Response:
        """The gateway says that it is not ready, and goes on answering. Takes an administrator."""
        actor, data, version = actor_of(request), read_body(GatewayDrainIn, request), version_or_any(request)
        found = drain_gateway(actor=actor, gateway=get_gateway(name), expected_version=version, **data)
        return versioned(GatewayOut(found))


class GatewayResumeView(APIView):
    @extend_schema(
        operation_id="gateways_resume", request=GatewayVerbIn, responses=GatewayOut, parameters=[IF_MATCH_OR_ANY]
    )
    def post(self, request: Request, name: str) -> Response:
        """The gateway says again that it is ready. Takes an administrator."""
        actor, data, version = actor_of(request), read_body(GatewayVerbIn, request), version_or_any(request)
        return versioned(
            GatewayOut(resume_gateway(actor=actor, gateway=get_gateway(name), expected_version=version, **data))
        )


class GatewayRemoveView(APIView):
    @extend_schema(
        operation_id="gateways_remove", request=GatewayVerbIn, responses={204: None}, parameters=[IF_MATCH_OR_ANY]
    )
    def post(self, request: Request, name: str) -> Response:
        """Takes a silent gateway off the list. Takes an administrator."""
        actor, data, version = actor_of(request), read_body(GatewayVerbIn, request), version_or_any(request)
        remove_gateway(actor=actor, gateway=get_gateway(name), expected_version=version, **data)
        return Response(status=204)
