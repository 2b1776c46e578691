"""Bearer tokens: the identity of a program's request.

REST framework loads it while its own views are still being made: nothing here, and nothing in this package's `__init__`,
may import them.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from accounts import actions
from accounts.actions.following import may_follow
from accounts.api.following import Followed
from accounts.models import Token, User
from ledger.core.errors import Refused


class BearerTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer sg_…`."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        words = get_authorization_header(request).decode("latin-1").split()
        if not words or words[0].lower() != "bearer":
            return None
        if len(words) != 2:
            raise AuthenticationFailed("The Authorization header must read `Bearer <token>`.")
        try:
            token = self._token(words[1], request)
        except Refused as error:
            raise AuthenticationFailed(error.message, code=error.code) from None
        return token.user, token

    def _token(self, secret: str, request: Request) -> Token:
        """Returns the token of this secret. An expired token passes if it may read the run of this view. Raises Refused."""
        view = (request.parser_context or {}).get("view")

        def is_follower(token: Token) -> bool:
            if not isinstance(view, Followed) or (run := view.run_end()) is None:
                return False
            return may_follow(token, view.subject_type, *run)

        return actions.living_token(secret, beyond_end=is_follower)

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="sluicegate"'


class BearerScheme(OpenApiAuthenticationExtension):
    target_class = "accounts.api.authentication.BearerTokenAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
