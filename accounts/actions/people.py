"""What may be done about people, teams and tokens."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import datetime, timedelta

from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from accounts.core.access import Actor, Role, Verb, require
from accounts.models import Membership, Team, Token, User
from ledger.actions import append_event
from ledger.core.errors import Invalid, Refused, StateChanged

FIRST_ADMINISTRATOR = "admin"
#: Begins every token, so that scanners for leaked secrets find it.
TOKEN_PREFIX = "sg_"
#: How often the use of a token is written down.
NOTED_EVERY = timedelta(minutes=1)
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,48}[a-z0-9])?")
_FIRST_LOCK = 0x51_0C_AD_01


def actor_for(user: User) -> Actor:
    """The user as an actor, with the roles it holds now. One query."""
    roles = user.memberships.values_list("team__slug", "role").order_by("team__slug", "role")
    return Actor(
        name=user.username,
        user_id=user.pk,
        is_admin=user.is_superuser,
        roles=tuple((slug, Role(role)) for slug, role in roles),
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


@transaction.atomic
def create_team(*, actor: Actor, slug: str, title: str = "") -> Team:
    """The team; the existing one when it is the same already. Raises Refused, Invalid, StateChanged."""
    require(actor, Verb.ADMINISTER, slug)
    if not _SLUG.fullmatch(slug):
        raise _field_error(
            "slug",
            f"{slug!r} is no team name.",
            "Use 1 to 50 lower-case letters, digits and dashes, such as search-ranking.",
        )
    title = title or slug
    if len(title) > 120:
        raise _field_error("title", "The title is longer than 120 characters.", "Shorten it.")
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
        raise _field_error(
            "username", f"{username!r} is no user name.", "Use letters, digits and @ . + - _ only."
        ) from None
    if not 1 <= len(username) <= 150 or username.startswith("system:"):
        raise _field_error(
            "username", "A user name has 1 to 150 characters and does not begin with system:.", "Choose another one."
        )
    if password is not None and len(password) < 10:
        raise _field_error("password", "The password has fewer than 10 characters.", "Choose a longer one.")
    user = User(username=username, is_superuser=is_admin, is_staff=is_admin)
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
    """The membership; the existing one when the user has the role already. Raises Refused, Invalid."""
    require(actor, Verb.ADMINISTER, team)
    user = User.objects.filter(username=username).first()
    its_team = Team.objects.filter(slug=team).first()
    if user is None:
        raise _field_error("username", f"There is no user {username}.", "Create the user first.")
    if its_team is None:
        raise _field_error("team", f"There is no team {team}.", "Create the team first.")
    if role not in set(Role):
        raise _field_error("role", f"{role!r} is no role.", f"Use one of {', '.join(Role)}.")
    membership, is_new = Membership.objects.get_or_create(user=user, team=its_team, role=Role(role).value)
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
def issue_token(*, user: User, name: str, actor: Actor, expires_at: datetime | None = None) -> str:
    """A new bearer token in clear text, never to be seen again: only its sha256 is kept. Raises Refused, Invalid."""
    if actor.user_id != user.pk:
        require(actor, Verb.ADMINISTER, "*")
    if not user.is_active:
        raise Refused(
            "user_inactive",
            f"{user.username} is not active and gets no tokens; an administrator can activate the user.",
        )
    if not 1 <= len(name) <= 120:
        raise _field_error(
            "name", "A token's name has 1 to 120 characters.", "Say where it is used, such as ci or laptop."
        )
    clear = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = Token.objects.create(
        user=user, name=name, sha256=token_digest(clear), prefix=clear[:8], expires_at=expires_at
    )
    append_event(
        verb="token.issued",
        subject_type="user",
        subject_id=user.username,
        actor=actor,
        facts={"token": token.pk, "name": name, "prefix": token.prefix},
    )
    return clear


@transaction.atomic
def revoke_token(*, actor: Actor, token: Token) -> None:
    """The token no longer lets anyone in, from the next request on. Repeating it changes nothing. Raises Refused."""
    if actor.user_id != token.user_id:
        require(actor, Verb.ADMINISTER, "*")
    if Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now()):
        append_event(
            verb="token.revoked",
            subject_type="user",
            subject_id=token.user.username,
            actor=actor,
            facts={"token": token.pk, "name": token.name},
        )


def user_of_token(clear: str) -> User:
    """Whom a bearer token lets in; notes its use, at most once a minute.

    Raises Refused, saying whether it is unknown, revoked or expired.
    """
    token = Token.objects.select_related("user").filter(sha256=token_digest(clear)).first()
    now = timezone.now()
    if token is None:
        raise Refused("no_such_token", "This token is not known here. Sign in again with `sluicegate login`.")
    if token.revoked_at is not None:
        raise Refused("token_revoked", f"The token {token.name!r} was revoked. Sign in again with `sluicegate login`.")
    if token.expires_at is not None and token.expires_at <= now:
        raise Refused("token_expired", f"The token {token.name!r} has expired. Sign in again with `sluicegate login`.")
    if not token.user.is_active:
        raise Refused("user_inactive", f"{token.user.username} is not active; ask an administrator.")
    if token.last_used_at is None or token.last_used_at < now - NOTED_EVERY:
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
    return token.user


def token_digest(clear: str) -> str:
    """64 hex digits. Plain sha256 is enough: the token has 256 random bits, so nobody can guess their way back."""
    return hashlib.sha256(clear.encode("utf-8", "surrogatepass")).hexdigest()


def _field_error(field: str, message: str, fix: str) -> Invalid:
    return Invalid("invalid", f"{message} {fix}", errors=[{"field": field, "message": message, "fix": fix}])
