"""Runs that outlive the token which asked for them: it may read those, and nothing else, after its end.

A CI job's token lives for 15 to 60 minutes, and a rollout for hours. See decision 42.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb
from accounts.models import FollowedRun, Token

#: After its end a token reads a run that it asked for at most this long, whether or not the run has ended.
MOST: Final = timedelta(days=7)
#: A run that has ended is still read for so long: its reader may have lost the connection at that moment.
AFTER_END: Final = timedelta(minutes=15)
#: Rows that are removed with each new one.
_FORGOTTEN_AT_ONCE: Final = 100


@transaction.atomic
def follow(actor: Actor, subject_type: str, subject_id: int) -> None:
    """Lets the token of this request read the run after the token's end. Does nothing for a session."""
    if actor.token_id is None:
        return
    now = timezone.now()
    FollowedRun.objects.update_or_create(
        token_id=actor.token_id, subject_type=subject_type, subject_id=subject_id, defaults={"until": now + MOST}
    )
    old = FollowedRun.objects.select_for_update(no_key=True, skip_locked=True).filter(until__lt=now).order_by("until")
    if forgotten := [row.pk for row in old[:_FORGOTTEN_AT_ONCE]]:
        FollowedRun.objects.filter(pk__in=forgotten).delete()


def may_follow(token: Token, subject_type: str, subject_id: int, ended_at: datetime | None) -> bool:
    """Whether the token, which has expired, may still read this run. `ended_at`: when the run ended, None if it goes on.

    A token whose scope lacks `read` reads nothing after its end either.
    """
    now = timezone.now()
    if token.scope_verbs is not None and Verb.READ not in token.scope_verbs:
        return False
    if ended_at is not None and now > ended_at + AFTER_END:
        return False
    row = FollowedRun.objects.filter(token=token.pk, subject_type=subject_type, subject_id=subject_id, until__gt=now)
    return row.exists()


def narrowed(token: Token) -> Token:
    """The token as it is after its end: of its scope, reading alone is left. It is not to be saved."""
    token.scope_verbs = [Verb.READ.value]
    return token


def end_following(tokens: Any) -> None:
    """The tokens, living or expired, follow no run any more. An action that ends tokens calls this."""
    FollowedRun.objects.filter(token__in=tokens).delete()
