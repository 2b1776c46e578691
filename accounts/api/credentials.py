"""Who a request is from, by its headers alone, before its body is read."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.base import SessionBase
from django.db import connection
from django.http import HttpRequest
from django.http.cookie import parse_cookie

from accounts import actions
from accounts.models import User
from ledger.core.errors import DomainError, Refused

Headers = Iterable[tuple[bytes, bytes]]


class Unknown(DomainError):
    """Nobody is signed in."""

    status = 401


def require_known(headers: Headers) -> None:
    """Raises Unknown unless a living token, or a living session, comes with the request.

    Two queries at most, on a connection of their own, which is closed: this runs outside of Django's requests. The view
    checks the sender's permissions.
    """
    said = {name: value.decode("latin-1") for name, value in headers if name in {b"authorization", b"cookie"}}
    words = said.get(b"authorization", "").split()
    try:
        if words and words[0].lower() == "bearer":
            _require_token(words[1:])
        elif session_of(headers) is None:
            raise Unknown(
                "not_authenticated",
                "Send `Authorization: Bearer <token>` with the body; `sluicegate login` gets one.",
            )
    finally:
        connection.close()


def _require_token(words: list[str]) -> None:
    if len(words) != 1:
        raise Unknown("authentication_failed", "The Authorization header must read `Bearer <token>`.")
    try:
        actions.user_of_token(words[0])
    except Refused as error:
        raise Unknown(error.code, error.message) from None


def session_of(headers: Headers) -> tuple[User, SessionBase] | None:
    """(user, session) of the request's living session, or None. Two queries at most."""
    key = _session_key(headers)
    if not key:
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    user = get_user(request)
    return (user, request.session) if isinstance(user, User) else None


def has_session_cookie(headers: Headers) -> bool:
    """Whether the request claims a session; without a query."""
    return bool(_session_key(headers))


def _session_key(headers: Headers) -> str:
    cookies = next((value.decode("latin-1") for name, value in headers if name == b"cookie"), "")
    return parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME, "")
