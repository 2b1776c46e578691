"""Named reads of people, teams and roles."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import Case, Exists, OuterRef, Prefetch, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Greatest
from django.utils import timezone

from accounts.core.access import Actor, Verb, teams_where
from accounts.models import Issuer, Membership, Team, Token, User, UserSession
from ledger.core.errors import NotFound


def teams() -> QuerySet[Team]:
    return Team.objects.order_by("slug")


def visible_teams(actor: Actor) -> QuerySet[Team]:
    """The teams in which the actor has a role; every team for an administrator, and for a role held in every team."""
    mine = teams_where(actor, Verb.READ)
    return teams() if mine is None else teams().filter(slug__in=mine)


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


def user_row(pk: int) -> QuerySet[User]:
    """The one row of a user, to hang other questions on."""
    return User.objects.filter(pk=pk)


def users_by_id(user_ids: Collection[int]) -> dict[int, User]:
    """These users, whether they are active or not."""
    return User.objects.in_bulk(user_ids)


def users() -> QuerySet[User]:
    """Everybody, with their roles."""
    return User.objects.prefetch_related("memberships__team").order_by("username")


def people(*, text: str = "", role: str = "", state: str = "") -> QuerySet[User]:
    """Everybody by name, with their roles and `seen_at`: when a session or token of theirs was last used.

    `text` is part of the name; `role` is held in some team; `state` is active, inactive or administrators.
    """
    sessions = UserSession.objects.filter(user=OuterRef("pk")).order_by("-seen_at").values("seen_at")[:1]
    used = Token.objects.filter(user=OuterRef("pk"), last_used_at__isnull=False).order_by("-last_used_at")
    rows = users().annotate(
        seen_at=Greatest("last_login", Subquery(sessions), Subquery(used.values("last_used_at")[:1]))
    )
    if text:
        rows = rows.filter(username__icontains=text)
    if role:
        rows = rows.filter(Exists(Membership.objects.filter(user=OuterRef("pk"), role=role)))
    states = {"active": Q(is_active=True), "inactive": Q(is_active=False), "administrators": Q(is_superuser=True)}
    return rows.filter(states[state]) if state in states else rows


def teams_with_members(actor: Actor) -> QuerySet[Team]:
    """The teams that the actor may see, each with `shown`: its members, without those of every team."""
    inside = Membership.objects.filter(user__is_active=True).select_related("user").order_by("user__username", "role")
    return visible_teams(actor).prefetch_related(Prefetch("memberships", queryset=inside, to_attr="shown"))


def members_of(team: str) -> QuerySet[Membership]:
    """Who has which role in the team, those who have it in every team among them."""
    return (
        Membership.objects.filter(Q(team__slug=team) | Q(team=None), user__is_active=True)
        .select_related("user", "team")
        .order_by("user__username", "role", "pk")
    )


def cross_team_members() -> QuerySet[Membership]:
    """Who has which role in every team."""
    rows = Membership.objects.filter(team=None, user__is_active=True).select_related("user", "team")
    return rows.order_by("user__username", "role")


def memberships_with(roles: Collection[str], team: int | OuterRef) -> QuerySet[Membership]:
    """Memberships with one of these roles in the team, or in every team; also within another query."""
    return Membership.objects.filter(Q(team=team) | Q(team=None), role__in=roles)


def tokens_of(user: User) -> QuerySet[Token]:
    """The user's tokens, the newest first, ended ones among them."""
    return Token.objects.filter(user=user).order_by("-pk")


def tokens_by_life(user: User) -> QuerySet[Token]:
    """The user's tokens: those that are good first, then the ended ones, the newest of each first."""
    is_ended = Case(When(_is_good(timezone.now()), then=Value(0)), default=Value(1))
    return tokens_of(user).order_by(is_ended, "-pk")


def all_tokens(*, text: str = "", state: str = "") -> QuerySet[Token]:
    """Everybody's tokens, the newest first. `text` is part of its name or its user's; `state`: living, ended or unused."""
    rows = Token.objects.select_related("user").order_by("-pk")
    if text:
        rows = rows.filter(Q(name__icontains=text) | Q(user__username__icontains=text))
    good = _is_good(timezone.now())
    states = {"living": good, "ended": ~good, "unused": good & Q(last_used_at=None)}
    return rows.filter(states[state]) if state in states else rows


def _is_good(now: datetime) -> Q:
    lives = Q(expires_at=None) | Q(expires_at__gt=now)
    return Q(revoked_at=None, user__is_active=True) & lives


def get_token(user: User, pk: int) -> Token:
    """One of the user's tokens. Raises NotFound."""
    found = Token.objects.filter(user=user, pk=pk).first() if pk < 2**63 else None
    if found is None:
        raise NotFound("no_such_token", f"{user.username} has no token {pk}; list them to see their numbers.")
    return found


def sessions_of(user: User) -> QuerySet[UserSession]:
    """The user's sessions, the latest used first."""
    return UserSession.objects.filter(user=user).order_by("-seen_at", "-pk")


def get_session(user: User, pk: int) -> UserSession:
    """One of the user's living sessions. Raises NotFound."""
    found = UserSession.objects.filter(user=user, pk=pk).first() if pk < 2**63 else None
    if found is None:
        raise NotFound("no_such_session", f"{user.username} has no session {pk}; it may have ended already.")
    return found


def issuer_of_session(key_sha256: str) -> Issuer | None:
    """Whose sign-in began the living session of this digest; None: a password's, or there is no such session."""
    row = UserSession.objects.filter(key_sha256=key_sha256).select_related("issuer").first()
    return None if row is None else row.issuer


def first_administrator() -> User | None:
    """The administrator who has been there longest, of those who may still sign in."""
    return User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()


def is_token_known(sha256: str, until: datetime) -> bool:
    """Whether there is a token of this digest that was not revoked and lives beyond `until`."""
    return Token.objects.filter(Q(expires_at=None) | Q(expires_at__gt=until), sha256=sha256, revoked_at=None).exists()
