"""Sign-in for programs; teams, users and their tokens."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth import authenticate
from django.db import transaction
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.generics import ListAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts import actions
from accounts.api.authentication import BearerTokenAuthentication
from accounts.api.requests import StrictSerializer, actor_of, read_body
from accounts.api.responses import OnePage
from accounts.core.access import Role, Verb, require
from accounts.models import Team, Token, User
from ledger.core.errors import NotFound


class LoginSerializer(StrictSerializer):
    username = serializers.CharField()
    password = serializers.CharField(trim_whitespace=False)
    name = serializers.CharField(default="cli", max_length=120)


class TokenSerializer(serializers.Serializer[Any]):
    token = serializers.CharField(help_text="shown once")


class TokenNameSerializer(StrictSerializer):
    name = serializers.CharField(default="robot", max_length=120)


class RoleSerializer(StrictSerializer):
    team = serializers.CharField(source="team.slug")
    role = serializers.ChoiceField(choices=[r.value for r in Role])


class UserSerializer(StrictSerializer, serializers.ModelSerializer[User]):
    roles = RoleSerializer(source="memberships", many=True, required=False)
    is_admin = serializers.BooleanField(source="is_superuser", required=False)
    password = serializers.CharField(write_only=True, required=False, trim_whitespace=False)

    class Meta:
        model = User
        fields = ["username", "is_admin", "password", "roles"]
        extra_kwargs: ClassVar[dict[str, Any]] = {
            "username": {"validators": []}
        }  # the action says it with a stable code


class TeamSerializer(StrictSerializer, serializers.ModelSerializer[Team]):
    class Meta:
        model = Team
        fields = ["slug", "title"]
        extra_kwargs: ClassVar[dict[str, Any]] = {"slug": {"validators": []}, "title": {"required": False}}


class MembershipSerializer(StrictSerializer):
    username = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(choices=[r.value for r in Role])


class TokensView(APIView):
    """`sluicegate login`: a name and a password for a token."""

    authentication_classes: list[type[BaseAuthentication]] = []
    permission_classes = [AllowAny]

    def get_authenticate_header(self, request: Request) -> str:
        return BearerTokenAuthentication().authenticate_header(request)  # makes a wrong password 401, not 403

    @extend_schema(request=LoginSerializer, responses={201: TokenSerializer})
    def post(self, request: Request) -> Response:
        said = read_body(LoginSerializer, request)
        user = authenticate(username=said["username"], password=said["password"])
        if not isinstance(user, User):
            raise AuthenticationFailed("That name and password do not belong together.", code="login_failed")
        token = actions.issue_token(user=user, name=said["name"], actor=actions.actor_for(user))
        return Response(TokenSerializer({"token": token}).data, status=status.HTTP_201_CREATED)


class MeView(APIView):
    @extend_schema(responses=UserSerializer)
    def get(self, request: Request) -> Response:
        assert isinstance(request.user, User)  # IsAuthenticated came first
        return Response(UserSerializer(request.user).data)


class TeamsView(ListAPIView[Team]):
    """Every team, by name."""

    queryset = Team.objects.all()
    serializer_class = TeamSerializer
    pagination_ordering = "slug"

    @extend_schema(request=TeamSerializer, responses={201: TeamSerializer})
    def post(self, request: Request) -> Response:
        team = actions.create_team(actor=actor_of(request), **read_body(TeamSerializer, request))
        return Response(TeamSerializer(team).data, status=status.HTTP_201_CREATED)


class TeamMembersView(APIView):
    @extend_schema(request=MembershipSerializer, responses={201: MembershipSerializer})
    def post(self, request: Request, slug: str) -> Response:
        said = read_body(MembershipSerializer, request)
        membership = actions.grant_role(
            actor=actor_of(request), username=said["user"]["username"], team=slug, role=said["role"]
        )
        return Response(MembershipSerializer(membership).data, status=status.HTTP_201_CREATED)


class UsersView(APIView):
    @extend_schema(request=UserSerializer, responses={201: UserSerializer})
    def post(self, request: Request) -> Response:
        data, actor = read_body(UserSerializer, request), actor_of(request)
        with transaction.atomic():
            user = actions.create_user(
                actor=actor,
                username=data["username"],
                password=data.get("password"),
                is_admin=data.get("is_superuser", False),
            )
            for wanted in data.get("memberships", []):
                actions.grant_role(
                    actor=actor, username=user.username, team=wanted["team"]["slug"], role=wanted["role"]
                )
        return Response(UserSerializer(user).data, status=status.HTTP_201_CREATED)


class TokenRowSerializer(serializers.ModelSerializer[Token]):
    class Meta:
        model = Token
        fields = ["name", "prefix", "created_at", "last_used_at", "expires_at", "revoked_at"]


class TokensPage(OnePage):
    results = TokenRowSerializer(many=True)


class UserTokensView(APIView):
    """A user's tokens: a list, a new one, and an end to those of a name. For oneself, or for administrators."""

    @extend_schema(responses=TokensPage)
    def get(self, request: Request, username: str) -> Response:
        rows = self._user(request, username).tokens.order_by("-pk")
        return Response(TokensPage({"results": rows}).data)

    @extend_schema(request=TokenNameSerializer, responses={201: TokenSerializer})
    def post(self, request: Request, username: str) -> Response:
        user = self._user(request, username)
        name = read_body(TokenNameSerializer, request)["name"]
        token = actions.issue_token(user=user, name=name, actor=actor_of(request))
        return Response(TokenSerializer({"token": token}).data, status=status.HTTP_201_CREATED)

    @extend_schema(parameters=[OpenApiParameter("name", str, required=True)], responses={204: None})
    def delete(self, request: Request, username: str) -> Response:
        user, name = self._user(request, username), request.query_params.get("name", "")
        tokens = list(user.tokens.filter(name=name, revoked_at__isnull=True))
        if not tokens:
            raise NotFound(
                "no_such_token", f"{username} has no living token named {name!r}; list them to see their names."
            )
        for token in tokens:
            actions.revoke_token(actor=actor_of(request), token=token)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _user(self, request: Request, username: str) -> User:
        actor = actor_of(request)
        if actor.name != username:
            require(actor, Verb.ADMINISTER, "*")
        user = User.objects.filter(username=username).first()
        if user is None:
            raise NotFound("no_such_user", f"There is no user {username}; create the user first.", username=username)
        return user
