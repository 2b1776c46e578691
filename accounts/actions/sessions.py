"""Sessions of browsers: where somebody is signed in, and an end to it from elsewhere."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import CharField, F, Func, QuerySet
from django.utils import timezone

from accounts.core.access import Actor, require_own
from accounts.core.browsers import browser_text
from accounts.models import Issuer, User, UserSession
from ledger.actions import append_event

#: How often it is written down that a session is used.
SEEN_EVERY = timedelta(minutes=5)


class _Sha256(Func):
    """As `session_digest`, by what PostgreSQL brings: Django's own wants the extension pgcrypto."""

    template = "encode(sha256(convert_to(%(expressions)s, 'UTF8')), 'hex')"
    output_field = CharField()


def session_digest(key: str) -> str:
    """64 hex digits, by which a session is known without its key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


@transaction.atomic
def begin_session(
    *, user: User, key: str, address: str, user_agent: str, is_new: bool = True, issuer: Issuer | None = None
) -> UserSession:
    """The row of a session that a sign-in began, by the issuer or by password; `is_new` False: it goes on under a new key, as
    after a new password."""
    now = timezone.now()
    _forget_expired(user, now)
    row = UserSession.objects.create(
        user=user,
        key_sha256=session_digest(key),
        seen_at=now,
        address=address[:64],
        browser=browser_text(user_agent),
        issuer=issuer,
    )
    if is_new:
        actor = Actor(name=user.username, user_id=user.pk)
        _note("session.begun", row, actor)
    return row


def note_session(key: str, now: datetime | None = None) -> bool:
    """Notes that the session is used; False where it was ended. Call it every SEEN_EVERY at most."""
    return bool(UserSession.objects.filter(key_sha256=session_digest(key)).update(seen_at=now or timezone.now()))


@transaction.atomic
def end_session(*, actor: Actor, session: UserSession) -> None:
    """Signs out there: the next request of that browser is nobody's. Repeating it changes nothing. Raises Refused."""
    require_own(actor, session.user_id)
    row = (
        UserSession.objects.select_for_update(no_key=True, of=("self",))
        .select_related("user")
        .filter(pk=session.pk)
        .first()
    )
    if row is None:
        return
    _note("session.ended", row, actor)
    _drop(UserSession.objects.filter(pk=row.pk))


@transaction.atomic
def end_session_of(*, user: User, key: str) -> None:
    """Signs out here."""
    row = UserSession.objects.filter(user=user, key_sha256=session_digest(key)).first()
    if row is not None:
        end_session(actor=Actor(name=user.username, user_id=user.pk), session=row)


def drop_sessions(user: User) -> int:
    """Every session of the user ends; how many there were. Inside a transaction that writes the event."""
    return _drop(UserSession.objects.filter(user=user))


def drop_sessions_by(issuer: Issuer, user: User | None = None) -> int:
    """Every session that the issuer's sign-in began, or those of one user, ends; how many there were. Inside such a transaction."""
    rows = UserSession.objects.filter(issuer=issuer)
    return _drop(rows if user is None else rows.filter(user=user))


def _drop(rows: QuerySet[UserSession]) -> int:
    """Rows and what they stand for: by its digest, for the key is not known here."""
    digests = list(rows.values_list("key_sha256", flat=True))
    if digests:
        Session.objects.annotate(digest=_Sha256(F("session_key"))).filter(digest__in=digests).delete()
        rows.delete()
    return len(digests)


def _forget_expired(user: User, now: datetime) -> None:
    """Rows of sessions that ended by themselves: nobody came for as long as a session lives."""
    UserSession.objects.filter(user=user, seen_at__lt=now - timedelta(seconds=settings.SESSION_COOKIE_AGE)).delete()


def forget_expired_sessions(most: int = 1_000) -> int:
    """What ended by itself goes, from both tables, at most so many at once; how many it were. Nothing asks for these rows."""
    now = timezone.now()
    keys = list(Session.objects.filter(expire_date__lt=now).order_by("expire_date").values_list("pk", flat=True)[:most])
    UserSession.objects.filter(key_sha256__in=[session_digest(key) for key in keys]).delete()
    return Session.objects.filter(pk__in=keys, expire_date__lt=now).delete()[0]  # one used meanwhile stays


def _note(verb: str, row: UserSession, actor: Actor) -> None:
    append_event(
        verb=verb,
        subject_type="user",
        subject_id=row.user.username,
        actor=actor,
        facts={"session": row.pk, "browser": row.browser},
    )
