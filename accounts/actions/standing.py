"""Shutting people out, and letting them in again."""

from __future__ import annotations

from django.db import transaction

from accounts.actions.passwords import change_password
from accounts.actions.people import ADMINISTRATOR, keep_an_administrator
from accounts.actions.sign_in import forget_failures
from accounts.actions.tokens import end_credentials
from accounts.core.access import EVERY_TEAM, Actor, Verb, require
from accounts.models import User
from accounts.queries import get_user
from ledger.actions import append_event


@transaction.atomic
def deactivate_user(*, actor: Actor, username: str, reason: str = "") -> User:
    """The user, whom nothing lets in any more: sessions and tokens end. What was done stays in the log under the name.

    Repeating it changes nothing. Raises Refused, NotFound, and StateChanged for the last administrator.
    """
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    keep_an_administrator(username)
    user = get_user(username)
    if User.objects.filter(pk=user.pk, is_active=True).update(is_active=False):
        user.is_active = False
        ended = end_credentials(user)
        _note(actor, "user.deactivated", user, reason, tokens_ended=ended)
    return user


@transaction.atomic
def reactivate_user(*, actor: Actor, username: str, reason: str = "") -> User:
    """The user, who may sign in again, with the roles from before. Tokens and sessions of before stay ended."""
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    user = get_user(username)
    if User.objects.filter(pk=user.pk, is_active=False).update(is_active=True):
        user.is_active = True
        _note(actor, "user.reactivated", user, reason)
    return user


@transaction.atomic
def recover_administrator(*, actor: Actor, username: str, password: str) -> User:
    """An administrator who can sign in with this password, whatever the user was before; for an owner who is locked out.

    Only whoever reaches the database calls this (`manage.py recover_administrator`). Raises NotFound, Invalid.
    """
    user = reactivate_user(actor=actor, username=username, reason="recovered on the command line")
    if not user.is_superuser:
        User.objects.filter(pk=user.pk).update(is_superuser=True, is_staff=True)
        facts = {"team": EVERY_TEAM, "role": ADMINISTRATOR}
        append_event(verb="role.granted", subject_type="user", subject_id=username, actor=actor, facts=facts)
    change_password(actor=actor, user=user, password=password)
    forget_failures()
    return get_user(username)


def _note(actor: Actor, verb: str, user: User, reason: str, **facts: object) -> None:
    append_event(
        verb=verb, subject_type="user", subject_id=user.username, actor=actor, reason=reason.strip(), facts=dict(facts)
    )
