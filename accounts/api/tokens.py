"""Users' tokens: what each may at most, how long it lives, a new secret for it, and its end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, ListField, ModelSerializer
from rest_framework.views import APIView

from accounts import actions, queries
from accounts.api.people import TokenSerializer
from accounts.api.requests import StrictSerializer, actor_of, read_body
from accounts.api.responses import OnePage
from accounts.api.shapes import described
from accounts.api.users import readable_user
from accounts.core.access import require_own, scope_from
from accounts.models import Token
from ledger.core.errors import NotFound


class NewTokenIn(StrictSerializer):
    name = CharField(default="robot", max_length=120)
    expires_at: datetime | None = described("when it ends; left out: after SLUICEGATE_TOKEN_DAYS", default=None)
    verbs: list[str] | None = described(
        "at most these permissions: verbs of docs/access.md, or roles for all of their verbs; default: all permissions of the user",
        default=None,
    )
    models: list[str] | None = described(
        "names of models, or patterns such as search-*; left out: all, also those to come", default=None
    )


class TokenRotateIn(StrictSerializer):
    overlap_s: float | None = described("how long the secret of before is good; left out: a day", default=None)
    expires_at: datetime | None = described("when the token ends", default=None)


class TokenRowSerializer(ModelSerializer[Token]):
    verbs = ListField(child=CharField(), source="scope_verbs", allow_null=True, help_text="null: all")
    models = ListField(child=CharField(), source="scope_models", allow_null=True, help_text="null: all")

    class Meta:
        model = Token
        fields = [
            "id",
            "name",
            "prefix",
            "verbs",
            "models",
            "created_at",
            "last_used_at",
            "expires_at",
            "revoked_at",
            "rotated_at",
            "previous_until",
            "previous_used_at",
        ]


class TokensPage(OnePage):
    results: list[TokenRowSerializer]


class UserTokensView(APIView):
    """A user's tokens: lists them, creates a token, and ends the tokens of a name. For the user and for administrators."""

    @extend_schema(responses=TokensPage)
    def get(self, request: Request, username: str) -> Response:
        user = readable_user(request, username)
        require_own(actor_of(request), user.pk)
        return Response(TokensPage({"results": queries.tokens_of(user)}).data)

    @extend_schema(request=NewTokenIn, responses={201: TokenSerializer})
    def post(self, request: Request, username: str) -> Response:
        user = readable_user(request, username)
        given = read_body(NewTokenIn, request)
        token = actions.issue_token(
            user=user,
            name=given["name"],
            actor=actor_of(request),
            expires_at=given["expires_at"],
            scope=scope_from(given["verbs"], given["models"]),
        )
        return Response(TokenSerializer({"token": token}).data, status=status.HTTP_201_CREATED)

    @extend_schema(parameters=[OpenApiParameter("name", str, required=True)], responses={204: None})
    def delete(self, request: Request, username: str) -> Response:
        user, name = readable_user(request, username), request.query_params.get("name", "")
        tokens = list(user.tokens.filter(name=name, revoked_at__isnull=True)) if name.isprintable() else []
        if not tokens:
            raise NotFound(
                "no_such_token", f"{username} has no living token named {name!r}; list them to see their names."
            )
        for token in tokens:
            actions.revoke_token(actor=actor_of(request), token=token)
        return Response(status=status.HTTP_204_NO_CONTENT)


class TokenView(APIView):
    """One token, by its number in the list: its end."""

    @extend_schema(operation_id="users_token_destroy", responses={204: None})
    def delete(self, request: Request, username: str, token_id: int) -> Response:
        token = queries.get_token(readable_user(request, username), token_id)
        actions.revoke_token(actor=actor_of(request), token=token)
        return Response(status=status.HTTP_204_NO_CONTENT)


class RotateTokenView(APIView):
    """Creates a new secret for a token; the previous secret is good for a while. A token may rotate itself."""

    @extend_schema(request=TokenRotateIn, responses=TokenSerializer)
    def post(self, request: Request, username: str, token_id: int) -> Response:
        user = readable_user(request, username)
        given: dict[str, Any] = read_body(TokenRotateIn, request)
        overlap_s = given["overlap_s"]
        token = actions.rotate_token(
            actor=actor_of(request),
            token=queries.get_token(user, token_id),
            overlap=None if overlap_s is None else timedelta(seconds=max(-1.0, min(overlap_s, 1e9))),
            expires_at=given["expires_at"],
        )
        return Response(TokenSerializer({"token": token}).data)
