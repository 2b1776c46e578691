"""Who asks and for which version; sign-in for programs; teams and users."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import authenticate
from django.db import transaction
from django.http import HttpRequest
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts import actions
from accounts.authentication import BearerTokenAuthentication
from accounts.core.access import Actor, Role
from accounts.core.errors import Invalid, PreconditionRequired, Refused
from accounts.models import Membership, Team, User


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
    bare = raw.removeprefix("W/").strip('"')
    if not bare.isdigit():
        raise Invalid("if_match_invalid", f"If-Match must be a version number, not {raw}.", field="If-Match")
    return int(bare)


class LoginSerializer(serializers.Serializer[Any]):
    username = serializers.CharField()
    password = serializers.CharField()
    name = serializers.CharField(default="cli", max_length=120)


class TokenSerializer(serializers.Serializer[Any]):
    token = serializers.CharField(help_text="shown once")


class RoleSerializer(serializers.Serializer[Any]):
    team = serializers.CharField(source="team.slug")
    role = serializers.ChoiceField(choices=[r.value for r in Role])


class UserSerializer(serializers.ModelSerializer[User]):
    roles = RoleSerializer(source="memberships", many=True, required=False)
    is_admin = serializers.BooleanField(source="is_superuser", required=False)
    password = serializers.CharField(write_only=True, required=False)

    class Meta:
        model = User
        fields = ["username", "is_admin", "password", "roles"]
        extra_kwargs = {"username": {"validators": []}}  # the action says it with a stable code


class TeamSerializer(serializers.ModelSerializer[Team]):
    class Meta:
        model = Team
        fields = ["slug", "title"]
        extra_kwargs = {"slug": {"validators": []}, "title": {"required": False}}


class MembershipSerializer(serializers.Serializer[Membership]):
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
        return Response(UserSerializer(request.user).data)


class TeamsView(APIView):
    @extend_schema(responses=TeamSerializer(many=True))
    def get(self, request: Request) -> Response:
        return Response({"results": TeamSerializer(Team.objects.order_by("slug"), many=True).data})

    @extend_schema(request=TeamSerializer, responses={201: TeamSerializer})
    def post(self, request: Request) -> Response:
        team = actions.create_team(
            actor=actor_of(request), slug=str(request.data.get("slug", "")), title=str(request.data.get("title", ""))
        )
        return Response(TeamSerializer(team).data, status=status.HTTP_201_CREATED)


class TeamMembersView(APIView):
    @extend_schema(request=MembershipSerializer, responses={201: MembershipSerializer})
    def post(self, request: Request, slug: str) -> Response:
        membership = actions.grant_role(
            actor=actor_of(request),
            username=str(request.data.get("username", "")),
            team=slug,
            role=str(request.data.get("role", "")),
        )
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


class UserTokensView(APIView):
    """An administrator issues a token for a robot."""

    @extend_schema(request=None, responses={201: TokenSerializer})
    def post(self, request: Request, username: str) -> Response:
        user = User.objects.filter(username=username).first()
        actor = actor_of(request)
        if user is None or not (actor.is_admin or actor.user_id == user.pk):
            raise Refused("forbidden", "Only administrators issue tokens for others.")
        token = actions.issue_token(user=user, name=str(request.data.get("name", "robot")), actor=actor)
        return Response({"token": token}, status=status.HTTP_201_CREATED)
