"""Facts of the pages with a person's tokens and sessions."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from accounts import actions, queries
from accounts.api.requests import actor_of
from accounts.core.access import DOING, Role, Verb, verbs_of
from accounts.models import User

#: As many of one person's tokens as a page shows; ended ones are shown after those that live.
MOST_SHOWN = 50
#: How long the secret of before is good after a rotation, as the form offers it, in hours.
OVERLAPS_H = (("24", "1 day"), ("168", "7 days"), ("1", "1 hour"), ("0", "not at all"))


def token_facts(request: HttpRequest, user: User) -> dict[str, Any]:
    """What `settings/_tokens.html` and `settings/_sessions.html` show of a user."""
    key = request.session.session_key
    held = verbs_of(actions.actor_for(user))
    return {
        "owner": user,
        "tokens": list(queries.tokens_by_life(user)[:MOST_SHOWN]),
        "sessions": list(queries.sessions_of(user)),
        "this_session": actions.session_digest(key) if key else "",
        "verbs": [(verb.value, DOING[verb]) for verb in Verb if verb in held],
        "roles_of_scope": [(role.value, role.value) for role in Role],
        "days": f"{settings.TOKEN_DAYS:g}",
        "most_days": f"{settings.TOKEN_MOST_DAYS:g}",
        "overlaps": OVERLAPS_H,
        "now": timezone.now(),
        "form": request.POST,
        "form_verbs": request.POST.getlist("verbs"),
    }


def page_of(request: HttpRequest, user: User) -> str:
    """The address of the page with this user's tokens: one's own account, or the person's."""
    own = actor_of(request).user_id == user.pk
    return reverse("account") if own else reverse("person", args=[user.username])
