"""Who reads a stream, by the session of the request, and whether they still may. Plain functions that ask the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from django.contrib.sessions.models import Session
from django.utils import timezone

from accounts.actions import actor_for
from accounts.api.credentials import Headers, has_session_cookie, session_of
from accounts.models import User
from accounts.queries import users_by_id
from audit.core.audience import Audience
from audit.queries import audience_of
from ledger.queries import head_seq
from sluicegate.live.frames import Why


@dataclass(frozen=True)
class Reader:
    """A person at a browser. `credentials` is the session's basis: it differs once the password does.

    All of it is true as of the event `as_of`, at least.
    """

    user_id: int
    session_key: str
    credentials: str
    expires_at: datetime
    as_of: int


def reader_of(headers: Headers) -> tuple[Reader, Audience] | None:
    """The person and their permissions to read; None unless a living session comes with the request. Seven queries."""
    if not has_session_cookie(headers):
        return None  # an anonymous request costs the database nothing
    as_of = head_seq()
    found = session_of(headers)
    if found is None:
        return None
    user, session = found
    key = str(session.session_key)
    expires_at = Session.objects.filter(session_key=key).values_list("expire_date", flat=True).first()
    if expires_at is None:
        return None
    reader = Reader(user.pk, key, user.get_session_auth_hash(), expires_at, as_of)
    return reader, audience_of(actor_for(user))


def shut_out(readers: Collection[Reader]) -> dict[Reader, Why]:
    """Which of them may read no more, and why. Two queries, however many they are."""
    now = timezone.now()
    keys = {reader.session_key for reader in readers}
    living = set(
        Session.objects.filter(session_key__in=keys, expire_date__gt=now).values_list("session_key", flat=True)
    )
    users = users_by_id({reader.user_id for reader in readers})
    found = {reader: _why(reader, users.get(reader.user_id), reader.session_key in living, now) for reader in readers}
    return {reader: why for reader, why in found.items() if why is not None}


def _why(reader: Reader, user: User | None, has_session: bool, now: datetime) -> Why | None:
    if user is None or not user.is_active:
        return Why.DEACTIVATED
    if user.get_session_auth_hash() != reader.credentials:
        return Why.CREDENTIALS
    if has_session:
        return None
    return Why.EXPIRED if reader.expires_at <= now else Why.ENDED


def audiences(user_ids: Iterable[int]) -> dict[int, Audience]:
    """What these people may read now."""
    return {pk: audience_of(actor_for(user)) for pk, user in users_by_id(set(user_ids)).items()}


def is_less(now: Audience, before: Audience) -> bool:
    """Whether something could be read before that can be read no more."""
    if now.sees_all:
        return False
    return before.sees_all or not (before.models <= now.models and before.teams <= now.teams)


def with_model(audience: Audience, team: str, model: str) -> Audience:
    """The audience once the team has this new model."""
    return replace(audience, models=audience.models | {model}) if team in audience.teams else audience
