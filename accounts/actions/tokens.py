"""Bearer tokens: how programs sign in."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts.actions.following import end_following, narrowed
from accounts.actions.sessions import drop_sessions
from accounts.core.access import Actor, require_own, require_within
from accounts.core.scope import WHOLE, Scope
from accounts.models import Token, User
from ledger.actions import append_event
from ledger.core.errors import Refused, StateChanged, field_error

#: Begins every token, so that scanners for leaked secrets find it.
TOKEN_PREFIX = "sg_"
#: How often the use of a token is written down.
NOTED_EVERY = timedelta(minutes=1)
#: How long the secret of before is good after a rotation, unless it is said, and at most.
OVERLAP, MOST_OVERLAP = timedelta(days=1), timedelta(days=30)


@transaction.atomic
def issue_token(
    *, user: User, name: str, actor: Actor, expires_at: datetime | None = None, scope: Scope = WHOLE
) -> str:
    """A new bearer token in clear text, never to be seen again: only its sha256 is kept. Raises Refused, Invalid.

    Without `expires_at` it ends after SLUICEGATE_TOKEN_DAYS; SLUICEGATE_TOKEN_MOST_DAYS is the latest. The scope (see
    `accounts.core.access.scope_from`) is at most that of the token with which the actor came.
    """
    _require_secret_of_now(actor)
    require_own(actor, user.pk)
    require_within(actor, scope)
    if not user.is_active:
        raise Refused(
            "user_inactive",
            f"{user.username} is not active and gets no tokens; an administrator can activate the user.",
        )
    if not 1 <= len(name) <= 120:
        raise field_error(
            "name", "A token's name has 1 to 120 characters.", "Say where it is used, such as ci or laptop."
        )
    ends_at = _end_of(expires_at)
    clear = _new_secret()
    token = Token.objects.create(
        user=user,
        name=name,
        sha256=token_digest(clear),
        prefix=clear[:8],
        expires_at=ends_at,
        scope_verbs=None if scope.verbs is None else sorted(scope.verbs),
        scope_models=None if scope.models is None else sorted(scope.models),
    )
    append_event(
        verb="token.issued",
        subject_type="user",
        subject_id=user.username,
        actor=actor,
        facts={
            "token": token.pk,
            "name": name,
            "prefix": token.prefix,
            "expires_at": ends_at.isoformat(),
            "verbs": token.scope_verbs,
            "models": token.scope_models,
        },
    )
    return clear


@transaction.atomic
def rotate_token(
    *, actor: Actor, token: Token, overlap: timedelta | None = None, expires_at: datetime | None = None
) -> str:
    """A new secret for the token, in clear text; the one before is good for `overlap` more (OVERLAP), then never again.

    One secret before is good at a time: rotating twice ends the first at once. A token may rotate itself, and then ends when it
    would have ended; from whoever manages the account it gets a new end, as a new one would. Raises Refused, Invalid.
    """
    _require_secret_of_now(actor, beside=token.pk)
    overlap = OVERLAP if overlap is None else overlap
    row = Token.objects.select_for_update(no_key=True, of=("self",)).select_related("user").get(pk=token.pk)
    by_itself = actor.token_id == row.pk
    if not by_itself:
        require_own(actor, row.user_id)
        require_within(actor, row.scope)
    now = timezone.now()
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now) or not row.user.is_active:
        raise StateChanged("token_ended", f"The token {row.name!r} has ended. Issue a new one.")
    if not timedelta() <= overlap <= MOST_OVERLAP:
        raise field_error("overlap_s", "The secret of before is good for 0 s to 30 days more.", "Name another time.")
    if by_itself and expires_at is not None and row.expires_at is not None and expires_at > row.expires_at:
        raise field_error("expires_at", "A token cannot give itself a later end.", "Leave it out.")
    clear = _new_secret()
    ends_at = row.expires_at if by_itself and expires_at is None else _end_of(expires_at)
    row.previous_sha256, row.previous_until, row.previous_used_at = row.sha256, now + overlap, None
    row.sha256, row.prefix, row.rotated_at, row.expires_at = token_digest(clear), clear[:8], now, ends_at
    row.save()
    append_event(
        verb="token.rotated",
        subject_type="user",
        subject_id=row.user.username,
        actor=actor,
        facts={
            "token": row.pk,
            "name": row.name,
            "prefix": row.prefix,
            "previous_until": row.previous_until.isoformat(),
            "expires_at": ends_at.isoformat() if ends_at else None,
        },
    )
    return clear


@transaction.atomic
def revoke_token(*, actor: Actor, token: Token) -> None:
    """The token no longer lets anyone in, from the next request on. Repeating it changes nothing. Raises Refused."""
    if actor.token_id != token.pk:  # a token may end itself
        require_own(actor, token.user_id)
    if Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now()):
        append_event(
            verb="token.revoked",
            subject_type="user",
            subject_id=token.user.username,
            actor=actor,
            facts={"token": token.pk, "name": token.name},
        )


def user_of_token(clear: str) -> User:
    """Whom a bearer token lets in, as `living_token`."""
    return living_token(clear).user


def living_token(clear: str, *, beyond_end: Callable[[Token], bool] = lambda token: False) -> Token:
    """The token, with its user, whose secret this is; notes its use, at most once a minute.

    `beyond_end` states whether a token that has expired is let in all the same, only to read.
    Raises Refused, saying whether it is unknown, revoked, rotated or expired.
    """
    digest, now = token_digest(clear), timezone.now()
    token = Token.objects.select_related("user").filter(Q(sha256=digest) | Q(previous_sha256=digest)).first()
    if token is None:
        raise Refused("no_such_token", "This token is not known here. Sign in again with `sluicegate login`.")
    if token.revoked_at is not None:
        raise Refused("token_revoked", f"The token {token.name!r} was revoked. Sign in again with `sluicegate login`.")
    has_expired = token.expires_at is not None and token.expires_at <= now
    if has_expired and not beyond_end(token):
        raise Refused("token_expired", f"The token {token.name!r} has expired. Sign in again with `sluicegate login`.")
    if not token.user.is_active:
        raise Refused("user_inactive", f"{token.user.username} is not active; ask an administrator.")
    is_previous = token.sha256 != digest
    if is_previous and (token.previous_until is None or token.previous_until <= now):
        raise Refused("token_rotated", f"The token {token.name!r} was rotated, and this secret of before has ended.")
    noted = {
        "last_used_at": token.last_used_at,
        **({"previous_used_at": token.previous_used_at} if is_previous else {}),
    }
    if any(at is None or at < now - NOTED_EVERY for at in noted.values()):
        Token.objects.filter(pk=token.pk).update(**dict.fromkeys(noted, now))
    token.secret_sha256 = digest
    return narrowed(token) if has_expired else token


def _require_secret_of_now(actor: Actor, *, beside: int | None = None) -> None:
    """Raises Refused for a rotated secret or a revoked token: it may have leaked, and would live on in a new token.

    Locks the actor's token, and the token `beside` it, until the transaction ends. So of many simultaneous requests with
    the same secret, the first alone rotates it.
    """
    if actor.token_id is None:
        return
    locked = Token.objects.select_for_update(no_key=True).filter(pk__in=[actor.token_id, beside]).order_by("pk")
    own = next((row for row in locked if row.pk == actor.token_id), None)
    if own is not None and own.revoked_at is not None:
        raise Refused("token_revoked", f"The token {own.name!r} was revoked, so it makes no other.")
    if own is None or own.sha256 != actor.secret_sha256:
        raise Refused(
            "previous_secret", "The token was rotated, and this secret of before makes no other. Use the new secret."
        )


def _new_secret() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_digest(clear: str) -> str:
    """64 hex digits. Plain sha256 is enough: the token has 256 random bits, so nobody can guess their way back."""
    return hashlib.sha256(clear.encode("utf-8", "surrogatepass")).hexdigest()


def end_credentials(user: User) -> int:
    """Every session and token of the user ends; how many tokens lived until now. Inside a transaction that writes the event."""
    drop_sessions(user)
    user.credentials_version += 1
    user.save(update_fields=["credentials_version"])
    end_following(Token.objects.filter(user=user))
    now = timezone.now()
    return Token.objects.filter(user=user, revoked_at=None, expires_at__gt=now).update(revoked_at=now) + (
        Token.objects.filter(user=user, revoked_at=None, expires_at=None).update(revoked_at=now)
    )


def _end_of(expires_at: datetime | None) -> datetime:
    """When a token that is issued now ends. Raises Invalid."""
    now = timezone.now()
    if expires_at is None:
        return now + timedelta(days=settings.TOKEN_DAYS)
    if expires_at <= now:
        raise field_error("expires_at", "The token would have ended already.", "Name a later time.")
    if expires_at > now + timedelta(days=settings.TOKEN_MOST_DAYS, minutes=5):  # the caller's clock may be ahead
        raise field_error(
            "expires_at",
            f"A token lives for at most {settings.TOKEN_MOST_DAYS:g} days here.",
            "Name an earlier time, and issue another one when it ends.",
        )
    return expires_at
