"""Named reads of issuers, their rules and the people they know."""

from __future__ import annotations

from django.db.models import Count, QuerySet

from accounts.core.access import Actor, Verb, require
from accounts.models import Identity, Issuer, RoleRule, TokenRule
from ledger.core.errors import NotFound


def issuers(actor: Actor) -> QuerySet[Issuer]:
    """All of them, with how many rules and people each has. Raises Refused."""
    require(actor, Verb.ADMINISTER, "*")
    return Issuer.objects.annotate(
        rule_count=Count("token_rules", distinct=True), people_count=Count("identities", distinct=True)
    ).order_by("pk")


def get_issuer(actor: Actor, pk: int) -> Issuer:
    """Raises Refused, NotFound."""
    row = issuers(actor).filter(pk=pk).first()
    if row is None:
        raise NotFound("no_such_issuer", f"There is no issuer {pk}; list them to see their numbers.")
    return row


def issuers_for_people() -> QuerySet[Issuer]:
    """Issuers that the sign-in page offers."""
    return Issuer.objects.filter(is_active=True, is_for_people=True).order_by("title", "pk")


def issuer_for_people(pk: int) -> Issuer:
    """The issuer. Raises NotFound, also if it signs no people in."""
    row = issuers_for_people().filter(pk=pk).first()
    if row is None:
        raise NotFound("no_such_issuer", "There is no such way to sign in. Go back to the sign-in page.")
    return row


def token_rules(issuer: Issuer) -> QuerySet[TokenRule]:
    """Oldest first: the order in which they are tried."""
    return TokenRule.objects.filter(issuer=issuer).select_related("user", "issuer").order_by("pk")


def get_token_rule(actor: Actor, pk: int) -> TokenRule:
    """Raises Refused, NotFound."""
    require(actor, Verb.ADMINISTER, "*")
    row = TokenRule.objects.select_related("user", "issuer").filter(pk=pk).first()
    if row is None:
        raise NotFound("no_such_rule", f"There is no token rule {pk}; list those of an issuer.")
    return row


def role_rules(issuer: Issuer) -> QuerySet[RoleRule]:
    return RoleRule.objects.filter(issuer=issuer).select_related("team").order_by("pk")


def get_role_rule(actor: Actor, pk: int) -> RoleRule:
    """Raises Refused, NotFound."""
    require(actor, Verb.ADMINISTER, "*")
    row = RoleRule.objects.select_related("team", "issuer").filter(pk=pk).first()
    if row is None:
        raise NotFound("no_such_rule", f"There is no role rule {pk}; list those of an issuer.")
    return row


def identities_of(issuer: Issuer) -> QuerySet[Identity]:
    return Identity.objects.filter(issuer=issuer).select_related("user").order_by("user__username", "pk")


def get_identity(actor: Actor, pk: int) -> Identity:
    """Raises Refused, NotFound."""
    require(actor, Verb.ADMINISTER, "*")
    row = Identity.objects.select_related("user", "issuer").filter(pk=pk).first()
    if row is None:
        raise NotFound("no_such_identity", f"There is no identity {pk}; list those of an issuer.")
    return row
