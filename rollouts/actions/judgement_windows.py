"""The window of a caller of the judge, who asks again with the same key."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts.core.access import EVERY_TEAM, Actor, Verb, require, teams_where
from ledger.core.canonical import digest_of
from ledger.core.errors import Invalid, StateChanged
from rollouts.models import JudgementWindow

KEPT_FOR = timedelta(days=7)
MOST_WINDOWS = 1000


def require_judge(actor: Actor) -> None:
    """Raises Refused unless the actor may have counters judged, by a role in any team. They are of no model, so no scope of models does."""
    require(actor, Verb.JUDGE, min(teams_where(actor, Verb.JUDGE) or {EVERY_TEAM}))


@transaction.atomic
def window_start(actor: Actor, key: str, question: dict[str, Any]) -> datetime:
    """The start of the key's window: now in the first call. Raises StateChanged if the question is another than in the first call."""
    now, digest = timezone.now(), digest_of(question)
    assert actor.user_id is not None
    own = JudgementWindow.objects.filter(user=actor.user_id)
    own.filter(began_at__lt=now - KEPT_FOR).delete()
    if not own.filter(key=key).exists() and own.count() >= MOST_WINDOWS:
        raise Invalid(
            "too_many_windows",
            f"There are {MOST_WINDOWS} windows of yours. Send `start` in place of a key, or wait: a window is kept for 7 days.",
        )
    first = {"question": digest, "began_at": now}
    window, _ = JudgementWindow.objects.get_or_create(user_id=actor.user_id, key=key, defaults=first)
    if window.question != digest:
        raise StateChanged(
            "other_question",
            f"The key {key} was first used with other queries or limits. Use another key, which begins another window.",
        )
    return window.began_at
