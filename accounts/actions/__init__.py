"""What may be done about people, teams and tokens."""

from __future__ import annotations

from accounts.actions.people import (
    FIRST_ADMINISTRATOR,
    NOTED_EVERY,
    TOKEN_PREFIX,
    actor_for,
    create_team,
    create_user,
    ensure_first_administrator,
    grant_role,
    issue_token,
    lock_team,
    revoke_token,
    token_digest,
    user_of_token,
)

__all__ = [
    "FIRST_ADMINISTRATOR",
    "NOTED_EVERY",
    "TOKEN_PREFIX",
    "actor_for",
    "create_team",
    "create_user",
    "ensure_first_administrator",
    "grant_role",
    "issue_token",
    "lock_team",
    "revoke_token",
    "token_digest",
    "user_of_token",
]
