"""Bearer tokens: how programs sign in."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from accounts.models import Token, User
from ledger.actions import append_event
from ledger.core.errors import Refused, field_error

#: Begins every token, so that scanners for leaked secrets find it.
TOKEN_PREFIX = "sg_"
#: How often the use of a token is written down.
NOTED_EVERY = timedelta(minutes=1)


@transaction.atomic
def issue_token(*, user: User, name: str, actor: Actor, expires_at: datetime | None = None) -> str:
    """A new bearer token in clear text, never to be seen again: only its sha256 is kept. Raises Refused, Invalid.

    Without `expires_at` it ends after SLUICEGATE_TOKEN_DAYS; SLUICEGATE_TOKEN_MOST_DAYS is the latest.
    """
    if actor.user_id != user.pk:
        require(actor, Verb.ADMINISTER, "*")
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
    clear = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = Token.objects.create(user=user, name=name, sha256=token_digest(clear), prefix=clear[:8], expires_at=ends_at)
    append_event(
        verb="token.issued",
        subject_type="user",
        subject_id=user.username,
        actor=actor,
        facts={"token": token.pk, "name": name, "prefix": token.prefix, "expires_at": ends_at.isoformat()},
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


def end_credentials(user: User) -> int:
    """Every session and token of the user ends; how many tokens lived until now. Inside a transaction that writes the event."""
    user.credentials_version += 1
    user.save(update_fields=["credentials_version"])
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
