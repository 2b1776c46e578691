"""What may be done about people, teams and roles."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from django.db import IntegrityError, connection, transaction

from accounts.actions.hashing import one_of_few
from accounts.actions.passwords import require_good_password
from accounts.core.access import CROSS_TEAM, EVERY_TEAM, Actor, Role, Verb, require
from accounts.core.scope import WHOLE
from accounts.core.slugs import slug_near
from accounts.models import Membership, Team, Token, User
from accounts.queries import get_user
from ledger.actions import append_event
from ledger.core.errors import NotFound, StateChanged, field_error

FIRST_ADMINISTRATOR = "admin"
#: What administrators have in place of a role in a team, as events call it.
ADMINISTRATOR = "administrator"
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,48}[a-z0-9])?")
_FIRST_LOCK = 0x51_0C_AD_01


def actor_for(user: User, token: Token | None = None, held: Iterable[tuple[str | None, str]] | None = None) -> Actor:
    """The user as an actor, with the roles held now and, where the request came with a token, its scope. One query.

    `held`: the roles as (team, role), where they have just been read with the user; then none.
    """
    scope = WHOLE if token is None else token.scope
    stored = user.memberships.values_list("team__slug", "role").order_by("team__slug", "role")
    roles = stored if held is None else held
    return Actor(
        name=user.username,
        user_id=user.pk,
        is_admin=user.is_superuser and scope.is_whole,
        every_role=user.is_superuser,
        roles=tuple((slug or EVERY_TEAM, Role(role)) for slug, role in roles),
        scope=scope,
        token_id=None if token is None else token.pk,
        secret_sha256="" if token is None else token.secret_sha256 or token.sha256,
    )


@transaction.atomic
def ensure_first_administrator() -> str | None:
    """The random password of a new user `admin`, to be shown once; None when there is an administrator already."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_FIRST_LOCK])
    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(15)
    create_user(actor=Actor.system("setup"), username=FIRST_ADMINISTRATOR, password=password, is_admin=True)
    return password


def lock_team(slug: str) -> Team | None:
    """The team's row, locked until the transaction ends; None where there is none."""
    return Team.objects.select_for_update(no_key=True).filter(slug=slug).first()


def lock_user(username: str) -> User | None:
    """The user's row, locked until the transaction ends: whoever changes the user's roles waits here. None where there is none."""
    return User.objects.select_for_update(no_key=True).filter(username=username).first()


@transaction.atomic
def create_team(*, actor: Actor, slug: str, title: str = "") -> Team:
    """The team; the existing one when it is the same already. Raises Refused, Invalid, StateChanged."""
    require(actor, Verb.ADMINISTER, slug)
    if not _SLUG.fullmatch(slug):
        raise field_error(
            "slug",
            f"{slug!r} is no team name.",
            f"Use 1 to 50 lower-case letters, digits and dashes, with no dash at either end, "
            f"such as {slug_near(slug, 50) or 'search-ranking'}.",
        )
    title = title or slug
    if len(title) > 120:
        raise field_error("title", "The title is longer than 120 characters.", "Shorten it.")
    team, is_new = Team.objects.get_or_create(slug=slug, defaults={"title": title})
    if is_new:
        append_event(verb="team.created", subject_type="team", subject_id=slug, actor=actor, facts={"title": title})
    elif team.title != title:
        raise StateChanged(
            "team_exists", f"There is a team {slug} already, titled {team.title!r}. Choose another name.", team=slug
        )
    return team


@transaction.atomic
def create_user(*, actor: Actor, username: str, password: str | None = None, is_admin: bool = False) -> User:
    """The new user; without a password a robot, which only tokens let in. Raises Refused, Invalid, StateChanged."""
    require(actor, Verb.ADMINISTER, "*")
    try:
        User.username_validator(username)
    except Exception:
        raise field_error(
            "username", f"{username!r} is no user name.", "Use letters, digits and @ . + - _ only."
        ) from None
    if not 1 <= len(username) <= 150 or username.startswith("system:"):
        raise field_error(
            "username", "A user name has 1 to 150 characters and does not begin with system:.", "Choose another one."
        )
    user = User(username=username, is_superuser=is_admin, is_staff=is_admin)
    if password is not None:
        require_good_password(password, user)
    with one_of_few():
        user.set_password(password)  # None makes it unusable
    try:
        with transaction.atomic():
            user.save()
    except IntegrityError:
        raise StateChanged(
            "user_exists", f"There is a user {username} already. Choose another name.", username=username
        ) from None
    append_event(
        verb="user.created",
        subject_type="user",
        subject_id=username,
        actor=actor,
        facts={"is_admin": is_admin, "has_password": password is not None},
    )
    return user


@transaction.atomic
def grant_role(*, actor: Actor, username: str, team: str, role: Role | str) -> Membership:
    """The membership; the existing one when the user has the role already, which from then on no issuer's rule takes away.
    `*` is every team. Raises Refused, Invalid."""
    require(actor, Verb.ADMINISTER, team)
    user = lock_user(username)
    its_team = Team.objects.filter(slug=team).first()
    if user is None:
        raise field_error("username", f"There is no user {username}.", "Create the user first.")
    if its_team is None and team != EVERY_TEAM:
        raise field_error("team", f"There is no team {team}.", "Create the team first.")
    if role not in set(Role):
        raise field_error("role", f"{role!r} is no role.", f"Use one of {', '.join(Role)}.")
    if its_team is None and role not in CROSS_TEAM:
        which = ", ".join(sorted(CROSS_TEAM))
        raise field_error("role", f"The role {role} is held team by team.", f"In every team one can be {which}.")
    membership, is_new = Membership.objects.get_or_create(user=user, team=its_team, role=Role(role).value)
    membership.by_rules.all().delete()  # given by hand, no rule takes it away again
    if is_new:
        append_event(
            verb="role.granted",
            subject_type="user",
            subject_id=username,
            actor=actor,
            facts={"team": team, "role": str(role)},
        )
    return membership


@transaction.atomic
def revoke_role(*, actor: Actor, username: str, team: str, role: Role | str) -> None:
    """The user no longer has the role, from the next request on. Raises Refused, and NotFound without such a role."""
    require(actor, Verb.ADMINISTER, team)
    lock_user(username)
    held = Membership.objects.filter(user__username=username, role=role)
    taken, _ = (held.filter(team=None) if team == EVERY_TEAM else held.filter(team__slug=team)).delete()
    if not taken:
        raise NotFound(
            "no_such_member",
            f"{username} has no role {role} in team {team}; list the team's members.",
            username=username,
        )
    append_event(
        verb="role.revoked",
        subject_type="user",
        subject_id=username,
        actor=actor,
        facts={"team": team, "role": str(role)},
    )


@transaction.atomic
def set_administrator(*, actor: Actor, username: str, is_admin: bool) -> User:
    """The user, with or without the right to administer everything. Raises Refused, NotFound, StateChanged for the last one."""
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    if not is_admin:
        keep_an_administrator(username)
    user = get_user(username)
    if user.is_superuser == is_admin:
        return user
    user.is_superuser = user.is_staff = is_admin
    user.save(update_fields=["is_superuser", "is_staff"])
    append_event(
        verb="role.granted" if is_admin else "role.revoked",
        subject_type="user",
        subject_id=username,
        actor=actor,
        facts={"team": EVERY_TEAM, "role": ADMINISTRATOR},
    )
    return user


def keep_an_administrator(without: str) -> None:
    """Raises StateChanged unless somebody else is left who administers and can sign in. Within the transaction that shuts out.

    Locks every administrator's row, so that two who shut out each other at once do not both succeed.
    """
    rows = User.objects.select_for_update(no_key=True).filter(is_superuser=True, is_active=True).order_by("pk")
    left = [user.username for user in rows if user.username != without and user.has_usable_password()]
    if without in {user.username for user in rows} and not left:
        raise StateChanged(
            "last_administrator",
            f"{without} is the last administrator who can sign in. Make another one first, with a password.",
            username=without,
        )


def keep_email(user: User, address: str) -> None:
    """Where mails to the person go from now on; empty: nowhere. The caller asked whether it may, and appends the event."""
    User.objects.filter(pk=user.pk).update(email=address)
    user.email = address
