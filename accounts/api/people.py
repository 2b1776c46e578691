"""Sign-in for programs; teams and their members."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.generics import ListAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BooleanField, CharField, ModelSerializer
from rest_framework.views import APIView

from accounts import actions
from accounts.api.authentication import BearerTokenAuthentication
from accounts.api.requests import StrictSerializer, actor_of, client_address, read_body
from accounts.api.responses import OnePage
from accounts.api.shapes import Shape, described
from accounts.core.access import EVERY_TEAM, Role, Verb, require
from accounts.models import Team, User
from accounts.queries import cross_team_members, members_of, visible_teams


class LoginSerializer(StrictSerializer):
    username: str
    password = CharField(trim_whitespace=False)
    name = CharField(default="cli", max_length=120)


class TokenSerializer(Shape):
    token: str = described("shown once")


class RoleSerializer(StrictSerializer):
    team: str = described("`*` for every team", source="team_slug")
    role: Role


class UserSerializer(StrictSerializer, ModelSerializer[User]):
    roles = RoleSerializer(source="memberships", many=True, required=False)
    is_admin = BooleanField(source="is_superuser", required=False)
    password = CharField(write_only=True, required=False, trim_whitespace=False)

    class Meta:
        model = User
        fields = ["username", "is_admin", "password", "roles"]
        extra_kwargs: ClassVar[dict[str, Any]] = {
            "username": {"validators": []}
        }  # the action refuses it with a stable code


class TeamSerializer(StrictSerializer, ModelSerializer[Team]):
    class Meta:
        model = Team
        fields = ["slug", "title"]
        extra_kwargs: ClassVar[dict[str, Any]] = {"slug": {"validators": []}, "title": {"required": False}}


class MembershipSerializer(StrictSerializer):
    username = CharField(source="user.username")
    role: Role


class MemberOut(Shape):
    """Who has which role, and whether it is held in this team or in every team."""

    username = CharField(source="user.username")
    role: Role
    team: str = described("`*` for every team", source="team_slug")


class TokensView(APIView):
    """`sluicegate login`: a name and a password for a token."""

    authentication_classes: list[type[BaseAuthentication]] = []
    permission_classes = [AllowAny]
    refusals: ClassVar = {"POST": {401, 429}}

    def get_authenticate_header(self, request: Request) -> str:
        return BearerTokenAuthentication().authenticate_header(request)  # makes a wrong password 401, not 403

    @extend_schema(request=LoginSerializer, responses={201: TokenSerializer})
    def post(self, request: Request) -> Response:
        said = read_body(LoginSerializer, request)
        user = actions.sign_in(username=said["username"], password=said["password"], address=client_address(request))
        if user is None:
            raise AuthenticationFailed("That name and password do not belong together.", code="login_failed")
        token = actions.issue_token(user=user, name=said["name"], actor=actions.actor_for(user))
        return Response(TokenSerializer({"token": token}).data, status=status.HTTP_201_CREATED)


class MeView(APIView):
    @extend_schema(responses=UserSerializer)
    def get(self, request: Request) -> Response:
        assert isinstance(request.user, User)  # IsAuthenticated came first
        return Response(UserSerializer(request.user).data)


class TeamsView(ListAPIView[Team]):
    """The caller's teams, by name; every team for administrators."""

    serializer_class = TeamSerializer
    pagination_ordering = "slug"

    def get_queryset(self) -> QuerySet[Team]:
        return visible_teams(actor_of(self.request))

    @extend_schema(request=TeamSerializer, responses={201: TeamSerializer})
    def post(self, request: Request) -> Response:
        team = actions.create_team(actor=actor_of(request), **read_body(TeamSerializer, request))
        return Response(TeamSerializer(team).data, status=status.HTTP_201_CREATED)


class MembersPage(OnePage):
    results: list[MemberOut]


class TeamMembersView(APIView):
    """Who has which role in a team, or with `*` in every team: a list for its members, roles given and taken by administrators."""

    @extend_schema(responses=MembersPage)
    def get(self, request: Request, slug: str) -> Response:
        require(actor_of(request), Verb.READ, slug)
        rows = cross_team_members() if slug == EVERY_TEAM else members_of(slug)
        return Response(MembersPage({"results": rows}).data)

    @extend_schema(request=MembershipSerializer, responses={201: MemberOut})
    def post(self, request: Request, slug: str) -> Response:
        said = read_body(MembershipSerializer, request)
        membership = actions.grant_role(
            actor=actor_of(request), username=said["user"]["username"], team=slug, role=said["role"]
        )
        return Response(MemberOut(membership).data, status=status.HTTP_201_CREATED)

    @extend_schema(
        parameters=[
            OpenApiParameter("username", str, required=True),
            OpenApiParameter("role", str, required=True, enum=[role.value for role in Role]),
        ],
        responses={204: None},
    )
    def delete(self, request: Request, slug: str) -> Response:
        asked = request.query_params
        actions.revoke_role(
            actor=actor_of(request), username=asked.get("username", ""), team=slug, role=asked.get("role", "")
        )
        return Response(status=status.HTTP_204_NO_CONTENT)
