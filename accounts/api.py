"""Who asks and for which version; sign-in for programs; teams and users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from django.contrib.auth import authenticate
from django.db import transaction
from django.http import HttpRequest
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, ErrorDetail, NotAuthenticated
from rest_framework.generics import ListAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts import actions
from accounts.authentication import BearerTokenAuthentication
from accounts.core.access import Actor, Role, Verb, require
from accounts.models import Team, Token, User
from ledger.core.errors import Invalid, NotFound, PreconditionRequired

_VERSION = re.compile(r'(?:W/)?"(?P<quoted>[0-9]{1,9})"|(?P<bare>[0-9]{1,9})')


def actor_of(request: Request | HttpRequest) -> Actor:
    """Who asks. Raises NotAuthenticated (401) when nobody is signed in."""
    if not isinstance(request.user, User):
        raise NotAuthenticated
    return actions.actor_for(request.user)


def expected_version(request: Request | HttpRequest) -> int:
    """The version in `If-Match`, written 3 or "3". Raises PreconditionRequired when absent, Invalid when it is no number."""
    raw = request.headers.get("If-Match", "").strip()
    if not raw:
        raise PreconditionRequired(
            "if_match_missing",
            "Send If-Match with the version you saw; GET the resource to learn it.",
            field="If-Match",
        )
    version = _VERSION.fullmatch(raw)
    if version is None:
        raise Invalid(
            "if_match_invalid", f'If-Match must be one version number such as "3", not {raw}.', field="If-Match"
        )
    return int(version["quoted"] or version["bare"])


# A comment and no docstring: the schema would show it as that of every form.
# Refuses members that it does not know: a misspelt field must not pass for one that was left out.
class StrictSerializer(serializers.Serializer[Any]):
    def to_internal_value(self, data: Any) -> Any:
        known = ", ".join(self.fields)
        unknown = [str(name) for name in data if name not in self.fields] if isinstance(data, Mapping) else []
        if unknown:
            said = ErrorDetail(f"There is no such field; the fields here are {known}.", "unknown_field")
            raise serializers.ValidationError({name: [said] for name in unknown})
        return super().to_internal_value(data)


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
        form = LoginSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        user = authenticate(username=form.validated_data["username"], password=form.validated_data["password"])
        if not isinstance(user, User):
            raise AuthenticationFailed("That name and password do not belong together.", code="login_failed")
        token = actions.issue_token(user=user, name=form.validated_data["name"], actor=actions.actor_for(user))
        return Response({"token": token}, status=status.HTTP_201_CREATED)


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
        form = TeamSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        team = actions.create_team(actor=actor_of(request), **form.validated_data)
        return Response(TeamSerializer(team).data, status=status.HTTP_201_CREATED)


class TeamMembersView(APIView):
    @extend_schema(request=MembershipSerializer, responses={201: MembershipSerializer})
    def post(self, request: Request, slug: str) -> Response:
        form = MembershipSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        username, role = form.validated_data["user"]["username"], form.validated_data["role"]
        membership = actions.grant_role(actor=actor_of(request), username=username, team=slug, role=role)
        return Response(MembershipSerializer(membership).data, status=status.HTTP_201_CREATED)


class UsersView(APIView):
    @extend_schema(request=UserSerializer, responses={201: UserSerializer})
    def post(self, request: Request) -> Response:
        form = UserSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        actor, data = actor_of(request), form.validated_data
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


class UserTokensView(APIView):
    """A user's tokens: a list, a new one, and an end to those of a name. For oneself, or for administrators."""

    @extend_schema(responses=TokenRowSerializer(many=True))
    def get(self, request: Request, username: str) -> Response:
        rows = self._user(request, username).tokens.order_by("-pk")
        return Response({"results": TokenRowSerializer(rows, many=True).data})

    @extend_schema(request=TokenNameSerializer, responses={201: TokenSerializer})
    def post(self, request: Request, username: str) -> Response:
        user = self._user(request, username)
        form = TokenNameSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        token = actions.issue_token(user=user, name=form.validated_data["name"], actor=actor_of(request))
        return Response({"token": token}, status=status.HTTP_201_CREATED)

    @extend_schema(parameters=[OpenApiParameter("name", str, required=True)], responses={204: None})
    def delete(self, request: Request, username: str) -> Response:
        user, name = self._user(request, username), request.query_params.get("name", "")
        tokens = list(user.tokens.filter(name=name, revoked_at__isnull=True))
        if not tokens:
            raise NotFound(
                "token_unknown", f"{username} has no living token named {name!r}; list them to see their names."
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
            raise NotFound("user_unknown", f"There is no user {username}; create the user first.", username=username)
        return user
