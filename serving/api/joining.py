"""REST views of how nodes join: inviting one, another credential for it, and its end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OR_ANY, actor_of, read_body, version_or_any
from accounts.api.responses import OnePage
from accounts.core.access import EVERY_TEAM, Verb, require
from serving.actions.joining import LASTS, MOST, ask_rotation, invite_node, revoke_node
from serving.api.nodes import CordonIn, NodeOut, node_answer
from serving.queries import get_node
from serving.queries.fleet import open_invites


class InviteIn(CordonIn):
    hours = serializers.FloatField(
        required=False,
        default=LASTS / timedelta(hours=1),
        min_value=1 / 60,
        max_value=MOST / timedelta(hours=1),
        help_text="how long the token is good",
    )


class InviteOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    invited_by = serializers.CharField()
    invited_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()


class InvitedOut(InviteOut):
    token = serializers.CharField(help_text="for SLUICEGATE_NODE_JOIN_TOKEN of its agent; it is never shown again")


class InvitesPage(OnePage):
    results = InviteOut(many=True)


class InvitesView(APIView):
    @extend_schema(operation_id="node_invites_list", responses=InvitesPage)
    def get(self, request: Request) -> Response:
        """Invitations that are open: a handful, so there is one page. Takes an administrator."""
        require(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
        return Response(InvitesPage({"results": open_invites()}).data)


class InviteView(APIView):
    @extend_schema(operation_id="nodes_invite", request=InviteIn, responses={201: InvitedOut})
    def post(self, request: Request, name: str) -> Response:
        """A token with which one agent joins under this name. It takes the place of one that is open. Takes an administrator."""
        actor, data = actor_of(request), read_body(InviteIn, request)
        token, invite = invite_node(actor=actor, name=name, lasts=timedelta(hours=data["hours"]), reason=data["reason"])
        return Response(InvitedOut({**InviteOut(invite).data, "token": token}).data, status=201)


class RotateView(APIView):
    @extend_schema(operation_id="nodes_rotate", request=CordonIn, responses=NodeOut, parameters=[IF_MATCH_OR_ANY])
    def post(self, request: Request, name: str) -> Response:
        """Its agent takes another credential at its next heartbeat; no server is stopped. Takes an administrator."""
        actor, data, version = actor_of(request), read_body(CordonIn, request), version_or_any(request)
        return node_answer(actor, ask_rotation(actor=actor, node=get_node(name), expected_version=version, **data))


class RevokeView(APIView):
    @extend_schema(operation_id="nodes_revoke", request=CordonIn, responses=NodeOut, parameters=[IF_MATCH_OR_ANY])
    def post(self, request: Request, name: str) -> Response:
        """Its agent is refused from its next heartbeat on, and what ran there is placed elsewhere. Takes an administrator."""
        actor, data, version = actor_of(request), read_body(CordonIn, request), version_or_any(request)
        return node_answer(actor, revoke_node(actor=actor, node=get_node(name), expected_version=version, **data))
