"""What may be done about people, teams and tokens."""

from __future__ import annotations

from accounts.actions.passwords import change_password, require_good_password
from accounts.actions.people import (
    FIRST_ADMINISTRATOR,
    actor_for,
    create_team,
    create_user,
    ensure_first_administrator,
    grant_role,
    lock_team,
    revoke_role,
    set_administrator,
)
from accounts.actions.sessions import (
    SEEN_EVERY,
    begin_session,
    end_session,
    end_session_of,
    forget_expired_sessions,
    note_session,
    session_digest,
)
from accounts.actions.sign_in import prove_password, sign_in
from accounts.actions.standing import deactivate_user, reactivate_user, recover_administrator
from accounts.actions.tokens import (
    NOTED_EVERY,
    OVERLAP,
    TOKEN_PREFIX,
    issue_token,
    living_token,
    revoke_token,
    rotate_token,
    token_digest,
    user_of_token,
)

__all__ = [
    "FIRST_ADMINISTRATOR",
    "NOTED_EVERY",
    "OVERLAP",
    "SEEN_EVERY",
    "TOKEN_PREFIX",
    "actor_for",
    "begin_session",
    "change_password",
    "create_team",
    "create_user",
    "deactivate_user",
    "end_session",
    "end_session_of",
    "ensure_first_administrator",
    "forget_expired_sessions",
    "grant_role",
    "issue_token",
    "living_token",
    "lock_team",
    "note_session",
    "prove_password",
    "reactivate_user",
    "recover_administrator",
    "require_good_password",
    "revoke_role",
    "revoke_token",
    "rotate_token",
    "session_digest",
    "set_administrator",
    "sign_in",
    "token_digest",
    "user_of_token",
]
