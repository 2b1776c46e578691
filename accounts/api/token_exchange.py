"""Programs' identity tokens: exchanged for a token of ours, or explained."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.actions.token_exchange import exchange_id_token, explain
from accounts.api.authentication import BearerTokenAuthentication
from accounts.api.issuers import TokenRuleOut
from accounts.api.requests import DocumentField, PlainText, StrictSerializer, actor_of, read_body
from accounts.api.shapes import Shape, described
from accounts.queries.issuers import get_issuer


class ExchangeIn(StrictSerializer):
    id_token = PlainText(help_text="token that the CI's issuer signed, for the audience configured here")
    rule: int | None = described("of which rule, where several are met", required=False, default=None)


class ExchangedOut(Shape):
    token: str = described("a bearer token, shown once")
    expires_at: datetime
    rule = serializers.IntegerField(source="rule.pk")
    username: str = described("the robot that it acts as", source="rule.user.username")
    verbs: list[str] = described(source="rule.scope_verbs")
    models: list[str] | None = described("null: all", source="rule.scope_models")


class TryIn(StrictSerializer):
    id_token = PlainText(default="", help_text="it is verified, and not used up")
    issuer: int | None = described("the issuer of these `claims`", default=None)
    claims = DocumentField(default=None, help_text="in place of a token: believed as they are")


class ClaimCheckOut(Shape):
    name: str
    expected: str
    found: str | None = described("null: the token has no such claim")
    is_met: bool
    reason: str


class RuleTriedOut(Shape):
    rule: TokenRuleOut
    checks: list[ClaimCheckOut]
    is_met: bool
    would_give: bool = described("the token given would be this rule's")


class ExplanationOut(Shape):
    """What an identity token would get, claim by claim."""

    issuer: str | None = described(source="issuer.url", default=None)
    problem: str = described("why it is not believed at all, or empty")
    claims = serializers.DictField()
    rules: list[RuleTriedOut]


class TokenExchangeView(APIView):
    """An identity token of a configured issuer for a token of 15 to 60 minutes. It works once for each identity token."""

    authentication_classes: list[type[BaseAuthentication]] = []
    permission_classes = [AllowAny]
    refusals: ClassVar = {"POST": {401, 403, 503}}

    def get_authenticate_header(self, request: Request) -> str:
        return BearerTokenAuthentication().authenticate_header(request)

    @extend_schema(request=ExchangeIn, responses={201: ExchangedOut})
    def post(self, request: Request) -> Response:
        given = exchange_id_token(**read_body(ExchangeIn, request))
        return Response(ExchangedOut(given).data, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class TokenTryView(APIView):
    """What an identity token would get, and why not. For administrators; nothing is used up and nothing is kept."""

    @extend_schema(request=TryIn, responses=ExplanationOut)
    def post(self, request: Request) -> Response:
        actor, said = actor_of(request), read_body(TryIn, request)
        issuer = get_issuer(actor, said["issuer"]) if said["issuer"] is not None else None
        found = explain(actor=actor, id_token=said["id_token"], issuer=issuer, claims=said["claims"])
        return Response(ExplanationOut(found).data)
