"""Who a browser's session belongs to, read with the roles that they hold, so that every page asks once for both."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.backends import BaseBackend
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef
from django.db.models.functions import JSONObject

from accounts.models import Membership, User


class SessionUsers(BaseBackend):
    """Finds the user of a session; passwords are left to the next backend."""

    def authenticate(self, request: Any, **credentials: Any) -> None:
        return None

    def get_user(self, user_id: int) -> User | None:
        """An active user with `held`: (team or None, role) of each membership, as `actor_for` takes them. One query."""
        held = Membership.objects.filter(user=OuterRef("pk")).order_by("team__slug", "role")
        rows = User.objects.annotate(
            held_rows=ArraySubquery(held.values(row=JSONObject(team="team__slug", role="role")))
        )
        user = rows.filter(pk=user_id, is_active=True).first()
        if user is not None:
            user.held = [(row["team"], row["role"]) for row in user.held_rows]  # type: ignore[attr-defined]
        return user
