"""Named reads of people, teams and roles."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import QuerySet

from accounts.models import Membership, Team, Token, User


def teams() -> QuerySet[Team]:
    return Team.objects.order_by("slug")


def find_team(slug: str) -> Team | None:
    """None also for what cannot be a name, which must not reach the database."""
    return Team.objects.filter(slug=slug).first() if slug.isprintable() else None


def active_users() -> QuerySet[User]:
    return User.objects.filter(is_active=True).order_by("username")


def memberships_with(roles: Collection[str]) -> QuerySet[Membership]:
    """Who has one of these roles in which team."""
    return Membership.objects.filter(role__in=roles)


def first_administrator() -> User | None:
    """The administrator who has been there longest, of those who may still sign in."""
    return User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()


def is_token_known(sha256: str) -> bool:
    """Whether there is a token of this digest that was not revoked."""
    return Token.objects.filter(sha256=sha256, revoked_at=None).exists()
