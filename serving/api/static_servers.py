"""REST views of the servers that an environment lists."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, ChoiceField, DateTimeField
from rest_framework.views import APIView

from accounts.api.requests import PlainText, StrictSerializer, actor_of, read_body
from accounts.api.responses import OnePage
from accounts.api.shapes import Shape, described
from serving.environments.core.reasons import LONGEST_REASON
from serving.targets import queries
from serving.targets.actions.static_servers import list_server, remove_server
from serving.targets.core.static_servers import NOTHING
from serving.targets.queries.static_servers import ServerState, servers_of


class ListedServerOut(Shape):
    """A server that its owner runs."""

    name: str
    address: str = described("address:HTTP port:gRPC port")
    kind: str = described("the name that it must state; empty: any", source="server.kind")
    loads = CharField(source="server.loads")
    runtime = CharField(source="server.runtime")
    state = ChoiceField(choices=list(ServerState))
    says: str = described("the state as a sentence")
    releases: list[str] = described("those that it has, of models that you may see")
    seen_at: datetime | None = described(source="server.node.seen_at")
    listed_by = CharField(source="server.listed_by")
    listed_at = DateTimeField(source="server.listed_at")


class ListedServersPage(OnePage):
    results: list[ListedServerOut]


class ListedServerIn(StrictSerializer):
    name = PlainText()
    address = PlainText(help_text="address:HTTP port:gRPC port, such as 10.20.0.7:8000:8001")
    runtime = PlainText(help_text="name@sha256:…, the image that its owner names")
    loads = PlainText(
        required=False,
        default=NOTHING,
        help_text="request: files go into the load request; nothing: its owner puts releases there; or the absolute path of its "
        "model repository",
    )
    kind = PlainText(required=False, default="", help_text="the name that it must state, such as triton")


class ServerReasonIn(StrictSerializer):
    reason = CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)


class ListedServersView(APIView):
    @extend_schema(operation_id="environment_servers_list", responses=ListedServersPage)
    def get(self, request: Request, slug: str) -> Response:
        """The servers that the environment lists, with their states: a handful, so there is one page."""
        found = servers_of(actor_of(request), queries.get_environment(slug))
        return Response(ListedServersPage({"results": found}).data)

    @extend_schema(operation_id="environment_servers_add", request=ListedServerIn, responses={201: ListedServerOut})
    def post(self, request: Request, slug: str) -> Response:
        """Lists a server. Takes an administrator."""
        actor, environment = actor_of(request), queries.get_environment(slug)
        row = list_server(actor=actor, environment=environment, **read_body(ListedServerIn, request))
        found: Any = next(one for one in servers_of(actor, environment) if one.name == row.node_id)
        return Response(ListedServerOut(found).data, status=201)


class ServerRemoveView(APIView):
    @extend_schema(operation_id="environment_servers_remove", request=ServerReasonIn, responses={204: None})
    def post(self, request: Request, slug: str, name: str) -> Response:
        """Takes a server that has no release off the list. Takes an administrator."""
        actor, environment = actor_of(request), queries.get_environment(slug)
        remove_server(actor=actor, environment=environment, name=name, **read_body(ServerReasonIn, request))
        return Response(status=204)
