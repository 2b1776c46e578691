"""Who a browser's session belongs to, read with the roles that they hold, so that every page asks once for both."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.backends import BaseBackend
from django.contrib.postgres.expressions import ArraySubquery
from django.db import DEFAULT_DB_ALIAS
from django.db.models import OuterRef, QuerySet
from django.db.models.functions import JSONObject

from accounts.models import Membership, User

_COLUMNS = [column.attname for column in User._meta.concrete_fields]


def _active(user: int) -> QuerySet[User, tuple[Any, ...]]:
    """The user's columns, and the (team or None, role) of each membership."""
    held = Membership.objects.filter(user=OuterRef("pk")).order_by("team__slug", "role")
    roles = ArraySubquery(held.values(row=JSONObject(team="team__slug", role="role")))
    return User.objects.filter(pk=user, is_active=True).values_list(*_COLUMNS, roles)


class SessionUsers(BaseBackend):
    """Finds the user of a session; passwords are left to the next backend."""

    def authenticate(self, request: Any, **credentials: Any) -> None:
        return None

    def get_user(self, user_id: int) -> User | None:
        """An active user with `held`: (team or None, role) of each membership, as `actor_for` takes them. One query."""
        for *columns, held in _active(user=int(user_id)):
            user = User.from_db(DEFAULT_DB_ALIAS, _COLUMNS, columns)
            user.held = [(row["team"], row["role"]) for row in held]  # type: ignore[attr-defined]
            return user
        return None
