"""Users: who there is, who may come in, by which password and tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts import actions, queries
from accounts.api.people import RoleSerializer, UserSerializer
from accounts.api.requests import PlainText, StrictSerializer, actor_of, client_address, read_body
from accounts.api.shapes import Shape, described
from accounts.core.access import EVERY_TEAM, Verb, require
from accounts.models import User
from ledger.core.errors import field_error


class UserOut(Shape):
    """A person or a robot, as administrators see it."""

    username: str
    is_admin = serializers.BooleanField(source="is_superuser")
    is_active: bool = described("false: nothing lets this user in")
    has_password: bool = described("false: only tokens let in", source="has_usable_password")
    last_login: datetime | None = described("by the page")
    roles = RoleSerializer(source="memberships", many=True)


class UserChange(StrictSerializer):
    is_admin: bool


class StandingChange(StrictSerializer):
    reason = PlainText(default="", help_text="kept in the log")


class PasswordIn(StrictSerializer):
    password = PlainText(help_text="the new one")
    old_password = PlainText(default="", help_text="needed for one's own")


class UsersView(ListAPIView[User]):
    """Everybody, by name. For administrators."""

    serializer_class = UserOut
    pagination_ordering = "username"

    def get_queryset(self) -> Any:
        require(actor_of(self.request), Verb.ADMINISTER, EVERY_TEAM)
        return queries.users()

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
            for membership in data.get("memberships", []):
                actions.grant_role(
                    actor=actor, username=user.username, team=membership["team_slug"], role=membership["role"]
                )
        return Response(UserSerializer(user).data, status=status.HTTP_201_CREATED)


class UserView(APIView):
    """One user, for oneself and administrators; an administrator makes others administrators, or ends that."""

    @extend_schema(responses=UserOut)
    def get(self, request: Request, username: str) -> Response:
        return Response(UserOut(readable_user(request, username)).data)

    @extend_schema(request=UserChange, responses=UserOut)
    def patch(self, request: Request, username: str) -> Response:
        require(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
        is_admin = read_body(UserChange, request)["is_admin"]
        user = actions.set_administrator(actor=actor_of(request), username=username, is_admin=is_admin)
        return Response(UserOut(user).data)


class DeactivateUserView(APIView):
    """Shuts a user out: sessions and tokens end at once."""

    @extend_schema(request=StandingChange, responses=UserOut)
    def post(self, request: Request, username: str) -> Response:
        require(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
        reason = read_body(StandingChange, request)["reason"]
        return Response(
            UserOut(actions.deactivate_user(actor=actor_of(request), username=username, reason=reason)).data
        )


class ReactivateUserView(APIView):
    """Lets a user in again. What ended stays ended."""

    @extend_schema(request=StandingChange, responses=UserOut)
    def post(self, request: Request, username: str) -> Response:
        require(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
        reason = read_body(StandingChange, request)["reason"]
        return Response(
            UserOut(actions.reactivate_user(actor=actor_of(request), username=username, reason=reason)).data
        )


class PasswordView(APIView):
    """A new password: one's own by the old one, that of others for administrators. Sessions and tokens of the user end."""

    refusals: ClassVar = {"PUT": {429}}

    @extend_schema(request=PasswordIn, responses={204: None})
    def put(self, request: Request, username: str) -> Response:
        user, actor = readable_user(request, username), actor_of(request)
        given = read_body(PasswordIn, request)
        if actor.user_id == user.pk:
            if not given["old_password"]:
                raise field_error("old_password", "Your own password is changed by the old one.", "Add it.")
            actions.prove_password(user=user, password=given["old_password"], address=client_address(request))
        actions.change_password(actor=actor, user=user, password=given["password"])
        return Response(status=status.HTTP_204_NO_CONTENT)


def readable_user(request: Request, username: str) -> User:
    """The user, for itself and for administrators. Raises Refused, also for unknown names; NotFound."""
    actor = actor_of(request)
    if actor.name != username:
        require(actor, Verb.ADMINISTER, EVERY_TEAM)
    return queries.get_user(username)
