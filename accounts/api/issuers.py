"""Issuers, the rules of each, and the people that it knows. For administrators."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import (
    BooleanField,
    CharField,
    ChoiceField,
    DictField,
    IntegerField,
    ListField,
    ModelSerializer,
)
from rest_framework.views import APIView

from accounts.actions import issuers as actions
from accounts.actions import token_rules as rules
from accounts.api.requests import (
    IF_MATCH,
    DocumentField,
    PlainText,
    StrictSerializer,
    actor_of,
    expected_version,
    read_body,
)
from accounts.api.responses import OnePage, versioned
from accounts.api.shapes import Shape, described
from accounts.core.access import EVERY_TEAM, Role
from accounts.core.claims import USUAL_LIFE_S, IssuerKind
from accounts.models import Identity, Issuer, RoleRule, TokenRule
from accounts.queries import issuers as queries

_KINDS = [kind.value for kind in IssuerKind]


class IssuerOut(ModelSerializer[Issuer]):
    """An identity provider, without its client secret."""

    kind = ChoiceField(choices=_KINDS)
    has_secret = BooleanField(source="client_secret", help_text="whether there is a client secret")

    class Meta:
        model = Issuer
        fields: ClassVar = [
            "id",
            "title",
            "url",
            "kind",
            "is_active",
            "is_for_people",
            "client_id",
            "has_secret",
            "creates_accounts",
            "session_hours",
            "audience",
            "version",
            "created_by",
            "created_at",
        ]


class IssuersPage(OnePage):
    results: list[IssuerOut]


class IssuerChange(StrictSerializer):
    title = PlainText(required=False)
    client_id = PlainText(required=False)
    client_secret = PlainText(required=False, help_text="kept encrypted; empty takes it away")
    audience = PlainText(required=False, help_text="`aud` of programs' identity tokens; empty: none are taken")
    is_for_people: bool = described("the sign-in page offers it", required=False)
    creates_accounts: bool = described("the first sign-in of a person creates an account without roles", required=False)
    session_hours = IntegerField(required=False, min_value=1, max_value=168)
    is_active = BooleanField(required=False)


class IssuerIn(IssuerChange):
    url = PlainText(help_text="`iss`, to the letter")
    kind = PlainText(default=IssuerKind.OTHER.value, help_text=", ".join(_KINDS))


class IssuerChecked(Shape):
    """The issuer's present answer."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str
    token_endpoint: str
    keys: int


class RuleProblem(Shape):
    """Problems of a rule's claims, with their fixes."""

    field: str
    message: str
    fix: str


class TokenRuleOut(ModelSerializer[TokenRule]):
    """Which identity tokens get a token of which robot, with which scope and life."""

    issuer = IntegerField(source="issuer_id")
    username = CharField(source="user.username")
    claims = DictField(child=CharField())
    verbs = ListField(source="scope_verbs", child=CharField())
    models = ListField(source="scope_models", child=CharField(), allow_null=True, help_text="null: all")
    problems = RuleProblem(
        many=True, help_text="why it gives no token: it was saved when less was asked; most have none"
    )

    class Meta:
        model = TokenRule
        fields: ClassVar = [
            "id",
            "issuer",
            "title",
            "claims",
            "username",
            "verbs",
            "models",
            "life_s",
            "is_active",
            "problems",
            "last_used_at",
            "version",
            "created_by",
            "created_at",
        ]


class TokenRulesPage(OnePage):
    results: list[TokenRuleOut]


class TokenRuleChange(StrictSerializer):
    title = PlainText(required=False)
    claims = DocumentField(required=False, help_text='{"repository_id": "4711", "ref": "refs/heads/main"}')
    username = PlainText(required=False, help_text="the robot that the token acts as; it has no password")
    verbs: list[str] = described("verbs, or a role for all of its verbs", required=False)
    models: list[str] | None = described("names with `*`; null: all", required=False)
    life_s = IntegerField(required=False, min_value=900, max_value=3600)
    is_active = BooleanField(required=False)


class TokenRuleIn(TokenRuleChange):
    title = PlainText()
    claims = DocumentField()
    username = PlainText()
    verbs: list[str]
    life_s = IntegerField(default=USUAL_LIFE_S, min_value=900, max_value=3600)


class RoleRuleOut(ModelSerializer[RoleRule]):
    """Which people of an issuer hold a role."""

    issuer = IntegerField(source="issuer_id")
    claims = DictField(child=CharField())
    team = CharField(source="team.slug", default=EVERY_TEAM, help_text="`*`: every team")
    role = ChoiceField(choices=[role.value for role in Role])

    class Meta:
        model = RoleRule
        fields: ClassVar = ["id", "issuer", "claims", "team", "role", "created_by", "created_at"]


class RoleRulesPage(OnePage):
    results: list[RoleRuleOut]


class RoleRuleIn(StrictSerializer):
    claims = DocumentField(help_text='{"groups": "ml-release-managers"}')
    team = PlainText(help_text="`*` for every team")
    role = PlainText()


class IdentityOut(ModelSerializer[Identity]):
    """A user as the issuer knows them."""

    issuer = IntegerField(source="issuer_id")
    username = CharField(source="user.username")

    class Meta:
        model = Identity
        fields: ClassVar = ["id", "issuer", "username", "sub", "created_by", "created_at", "signed_in_at"]


class IdentitiesPage(OnePage):
    results: list[IdentityOut]


class IdentityIn(StrictSerializer):
    username = PlainText()
    sub = PlainText(help_text="the person's number at the issuer")


class IssuersView(APIView):
    @extend_schema(operation_id="issuers_list", responses=IssuersPage)
    def get(self, request: Request) -> Response:
        """Every issuer: a handful, so there is one page."""
        return Response(IssuersPage({"results": queries.issuers(actor_of(request))}).data)

    @extend_schema(request=IssuerIn, responses={201: IssuerOut})
    def post(self, request: Request) -> Response:
        """Takes another issuer. Whether it answers is asked by `check`."""
        row = actions.create_issuer(actor=actor_of(request), **read_body(IssuerIn, request))
        return versioned(IssuerOut(row), status.HTTP_201_CREATED)


class IssuerView(APIView):
    @extend_schema(operation_id="issuers_retrieve", responses=IssuerOut)
    def get(self, request: Request, issuer_id: int) -> Response:
        return versioned(IssuerOut(queries.get_issuer(actor_of(request), issuer_id)))

    @extend_schema(parameters=[IF_MATCH], request=IssuerChange, responses=IssuerOut)
    def patch(self, request: Request, issuer_id: int) -> Response:
        """Changes the issuer. Turned off, it ends its sign-ins and the tokens of its rules."""
        actor = actor_of(request)
        row = actions.change_issuer(
            actor=actor,
            issuer=queries.get_issuer(actor, issuer_id),
            expected_version=expected_version(request),
            changes=read_body(IssuerChange, request),
        )
        return versioned(IssuerOut(row))


class IssuerCheckView(APIView):
    @extend_schema(request=None, responses=IssuerChecked)
    def post(self, request: Request, issuer_id: int) -> Response:
        """Asks the issuer now, and returns its answer."""
        actor = actor_of(request)
        told, keys = actions.check_issuer(actor=actor, issuer=queries.get_issuer(actor, issuer_id))
        found = {
            name: getattr(told, name) for name in ("issuer", "jwks_uri", "authorization_endpoint", "token_endpoint")
        }
        return Response(IssuerChecked({**found, "keys": keys}).data)


class TokenRulesView(APIView):
    @extend_schema(operation_id="issuers_token_rules_list", responses=TokenRulesPage)
    def get(self, request: Request, issuer_id: int) -> Response:
        """The issuer's token rules, in the order in which they are tried."""
        issuer = queries.get_issuer(actor_of(request), issuer_id)
        return Response(TokenRulesPage({"results": queries.token_rules(issuer)}).data)

    @extend_schema(request=TokenRuleIn, responses={201: TokenRuleOut})
    def post(self, request: Request, issuer_id: int) -> Response:
        actor = actor_of(request)
        issuer = queries.get_issuer(actor, issuer_id)
        row = rules.create_token_rule(actor=actor, issuer=issuer, **read_body(TokenRuleIn, request))
        return versioned(TokenRuleOut(row), status.HTTP_201_CREATED)


class TokenRuleView(APIView):
    @extend_schema(operation_id="token_rules_retrieve", responses=TokenRuleOut)
    def get(self, request: Request, rule_id: int) -> Response:
        return versioned(TokenRuleOut(queries.get_token_rule(actor_of(request), rule_id)))

    @extend_schema(parameters=[IF_MATCH], request=TokenRuleChange, responses=TokenRuleOut)
    def patch(self, request: Request, rule_id: int) -> Response:
        """Changes the rule; tokens that it gave before end."""
        actor = actor_of(request)
        row = rules.change_token_rule(
            actor=actor,
            rule=queries.get_token_rule(actor, rule_id),
            expected_version=expected_version(request),
            changes=read_body(TokenRuleChange, request),
        )
        return versioned(TokenRuleOut(row))

    @extend_schema(parameters=[IF_MATCH], responses={204: None})
    def delete(self, request: Request, rule_id: int) -> Response:
        actor = actor_of(request)
        rule = queries.get_token_rule(actor, rule_id)
        rules.delete_token_rule(actor=actor, rule=rule, expected_version=expected_version(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class RoleRulesView(APIView):
    @extend_schema(operation_id="issuers_role_rules_list", responses=RoleRulesPage)
    def get(self, request: Request, issuer_id: int) -> Response:
        issuer = queries.get_issuer(actor_of(request), issuer_id)
        return Response(RoleRulesPage({"results": queries.role_rules(issuer)}).data)

    @extend_schema(request=RoleRuleIn, responses={201: RoleRuleOut})
    def post(self, request: Request, issuer_id: int) -> Response:
        actor = actor_of(request)
        issuer = queries.get_issuer(actor, issuer_id)
        row = rules.create_role_rule(actor=actor, issuer=issuer, **read_body(RoleRuleIn, request))
        return Response(RoleRuleOut(row).data, status=status.HTTP_201_CREATED)


class RoleRuleView(APIView):
    @extend_schema(responses={204: None})
    def delete(self, request: Request, rule_id: int) -> Response:
        actor = actor_of(request)
        rules.delete_role_rule(actor=actor, rule=queries.get_role_rule(actor, rule_id))
        return Response(status=status.HTTP_204_NO_CONTENT)


class IdentitiesView(APIView):
    @extend_schema(operation_id="issuers_identities_list", responses=IdentitiesPage)
    def get(self, request: Request, issuer_id: int) -> Response:
        """People who sign in at the issuer."""
        issuer = queries.get_issuer(actor_of(request), issuer_id)
        return Response(IdentitiesPage({"results": queries.identities_of(issuer)}).data)

    @extend_schema(request=IdentityIn, responses={201: IdentityOut})
    def post(self, request: Request, issuer_id: int) -> Response:
        """Prepares an account: the issuer's person `sub` signs in as this user."""
        actor = actor_of(request)
        issuer = queries.get_issuer(actor, issuer_id)
        row = actions.prepare_identity(actor=actor, issuer=issuer, **read_body(IdentityIn, request))
        return Response(IdentityOut(row).data, status=status.HTTP_201_CREATED)


class IdentityView(APIView):
    @extend_schema(responses={204: None})
    def delete(self, request: Request, identity_id: int) -> Response:
        actor = actor_of(request)
        actions.remove_identity(actor=actor, identity=queries.get_identity(actor, identity_id))
        return Response(status=status.HTTP_204_NO_CONTENT)
