"""Passwords: which are good enough, and how they change."""

from __future__ import annotations

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from accounts.actions.hashing import one_of_few
from accounts.actions.tokens import end_credentials
from accounts.core.access import Actor, require_own
from accounts.models import User
from ledger.actions import append_event
from ledger.core.errors import Refused, field_error

#: Longer ones are refused before they are hashed. Source: NIST SP 800-63B-4 asks for at least 64.
LONGEST = 1024


def require_good_password(password: str, user: User) -> None:
    """Raises Invalid, naming everything that is wrong with it: AUTH_PASSWORD_VALIDATORS of the settings."""
    if len(password) > LONGEST:
        raise field_error("password", f"The password has more than {LONGEST} characters.", "Choose a shorter one.")
    try:
        validate_password(password, user)
    except ValidationError as error:
        wrong = " ".join(error.messages)
        raise field_error("password", wrong, "Choose another one; a sentence of some words is good.") from None


@transaction.atomic
def change_password(*, actor: Actor, user: User, password: str) -> None:
    """The user's new password. Every session and token of the user ends.

    Whoever changes their own has proved the old one before (`accounts.actions.prove_password`); administrators set that of others.
    Raises Refused, Invalid.
    """
    require_own(actor, user.pk)
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if not user.is_active:
        raise Refused("user_inactive", f"{user.username} is not active; reactivate the user first.")
    require_good_password(password, user)
    with one_of_few():
        if user.check_password(password):
            raise field_error("password", "The new password is the old one.", "Choose another one.")
        user.set_password(password)
    user.save(update_fields=["password"])
    ended = end_credentials(user)
    append_event(
        verb="password.changed",
        subject_type="user",
        subject_id=user.username,
        actor=actor,
        facts={"tokens_ended": ended},
    )
