"""Named reads of people, teams and roles."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import Q, QuerySet

from accounts.core.access import Actor
from accounts.models import Membership, Team, Token, User
from ledger.core.errors import NotFound


def teams() -> QuerySet[Team]:
    return Team.objects.order_by("slug")


def visible_teams(actor: Actor) -> QuerySet[Team]:
    """The teams in which the actor has a role; every team for an administrator."""
    mine = {team for team, _ in actor.roles}
    return teams() if actor.is_admin or actor.is_system else teams().filter(slug__in=mine)


def find_team(slug: str) -> Team | None:
    """None also for what cannot be a name, which must not reach the database."""
    return Team.objects.filter(slug=slug).first() if slug.isprintable() else None


def active_users() -> QuerySet[User]:
    return User.objects.filter(is_active=True).order_by("username")


def get_user(username: str) -> User:
    """Raises NotFound; also for what cannot be a name, which must not reach the database."""
    user = User.objects.filter(username=username).first() if username.isprintable() else None
    if user is None:
        raise NotFound("no_such_user", f"There is no user {username}; create the user first.", username=username)
    return user


def users() -> QuerySet[User]:
    """Everybody, with their roles."""
    return User.objects.prefetch_related("memberships__team").order_by("username")


def members_of(team: str) -> QuerySet[Membership]:
    """Who has which role in the team."""
    return (
        Membership.objects.filter(team__slug=team, user__is_active=True)
        .select_related("user")
        .order_by("user__username", "role")
    )


def memberships_with(roles: Collection[str]) -> QuerySet[Membership]:
    """Who has one of these roles in which team."""
    return Membership.objects.filter(role__in=roles)


def first_administrator() -> User | None:
    """The administrator who has been there longest, of those who may still sign in."""
    return User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()


def is_token_known(sha256: str, until: datetime) -> bool:
    """Whether there is a token of this digest that was not revoked and lives beyond `until`."""
    return Token.objects.filter(Q(expires_at=None) | Q(expires_at__gt=until), sha256=sha256, revoked_at=None).exists()
