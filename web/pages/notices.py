"""What a browser may notify a person of while a page is open: an approval waits for them, a rollout of theirs was rolled back."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache

from accounts.api.requests import actor_of
from accounts.queries import get_user
from audit.queries import visible_events
from ledger.queries import head_seq
from ledger.queries.chain_verification import link_of
from notifications.core.note import note_of, path_of
from notifications.queries.recipients import APPROVAL, PERSONAL, ROLLBACKS
from rollouts.queries.inbox import waiting_approvals
from rollouts.queries.owners import rollouts_owned_by
from web.pages.session import live

#: Whoever opens the browser after a day reads the pages; nothing older is shown outside of them.
FRESH: Final = timedelta(minutes=10)
MOST_LOOKED_AT: Final = 100
MOST_SHOWN: Final = 5


@live
@never_cache
def notices(request: HttpRequest) -> JsonResponse:
    """`{"seq", "notices": [{"key", "title", "body", "url"}]}` of the events after `?after=SEQ`, the last few. Without it: from now on.

    `key` is what for: a browser shows one of a kind once, however often the log repeats it.
    """
    head = head_seq()
    asked = request.GET.get("after", "")
    after = int(asked) if re.fullmatch("[0-9]{1,18}", asked) else 0
    found = _since(request, after, head) if 0 < after < head else []
    return JsonResponse({"seq": head, "notices": found[-MOST_SHOWN:]})


def _since(request: HttpRequest, after: int, head: int) -> list[dict[str, Any]]:
    actor = actor_of(request)
    news = visible_events(actor).filter(seq__gt=after, seq__lte=head, verb__in=PERSONAL, subject_type="rollout")
    rows = list(news.filter(at__gte=timezone.now() - FRESH).order_by("-seq")[:MOST_LOOKED_AT])[::-1]
    verbs = {row.verb for row in rows}
    waiting = {one.rollout.pk: one for one in waiting_approvals(actor) if not one.why_not} if APPROVAL in verbs else {}
    ended = [int(row.subject_id) for row in rows if row.verb in ROLLBACKS]
    own = rollouts_owned_by(get_user(actor.name), ended) if ended else frozenset()
    shown: dict[str, dict[str, Any]] = {}
    for row in rows:
        pk = int(row.subject_id)
        note = note_of(link_of(row), public_url="")
        if row.verb == APPROVAL and pk in waiting:
            one = waiting[pk]
            title = f"{one.rollout.model.slug} {one.rollout.candidate.name} waits for your approval"
            shown[f"approval:{pk}:{one.stage}"] = {"title": title, "body": one.will, "url": "/approvals/"}
        elif row.verb in ROLLBACKS and pk in own:
            shown[f"{row.verb}:{pk}"] = {"title": note.headline, "body": note.sentence, "url": path_of(link_of(row))}
    return [{"key": key, **notice} for key, notice in shown.items()]
