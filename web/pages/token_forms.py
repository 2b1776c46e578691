"""Forms of tokens, on a person's page or one's own: create, rotate, end; and the list of all tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from accounts import actions, queries
from accounts.api.requests import actor_of
from accounts.core.access import scope_from
from accounts.core.scope import Scope
from accounts.models import User
from ledger.core.errors import DomainError, Invalid
from web.listing import Filter, asked
from web.pages.account import show_account
from web.pages.forms import act, refused
from web.pages.people import show_person
from web.pages.settings_frame import render_settings, require_administrator
from web.pages.token_facts import OVERLAPS_H, page_of

TOKENS_PER_PAGE = 50
STATES = (("living", "good"), ("ended", "ended"), ("unused", "good, never used"))


def _shown_again(request: HttpRequest, user: User) -> HttpResponse:
    return show_account(request) if actor_of(request).user_id == user.pk else show_person(request, user)


def _owner(request: HttpRequest, username: str) -> User:
    if actor_of(request).name != username:
        require_administrator(request)
    return queries.get_user(username)


def _scope_in(request: HttpRequest) -> Scope:
    """The scope that the form asks for. Raises Invalid."""
    given = request.POST
    verbs = given.getlist("verbs") if given.get("which_verbs") == "some" else None
    models = given.get("models", "").replace(",", " ").split()
    if verbs is not None and not verbs:
        raise Invalid("invalid", "Choose at least one verb, or let the token do all that its user may.")
    return scope_from(verbs, models or None)


def _days_in(request: HttpRequest) -> float:
    raw = request.POST.get("days", "").strip() or f"{settings.TOKEN_DAYS:g}"
    try:
        days = float(raw)
    except ValueError:
        days = 0.0
    if not 0 < days <= settings.TOKEN_MOST_DAYS:
        raise Invalid("invalid", f"A token lives for more than 0 and at most {settings.TOKEN_MOST_DAYS:g} days here.")
    return days


@login_required
@never_cache
def create_token(request: HttpRequest, username: str) -> HttpResponse:
    """Asks once, with the token's permissions; then shows its secret, which no other page shows."""
    user, name = _owner(request, username), request.POST.get("name", "").strip()
    is_confirmed = request.POST.get("confirmed") == "yes"
    try:
        scope, days = _scope_in(request), _days_in(request)
        with transaction.atomic():
            ends_at = timezone.now() + timedelta(days=days)
            clear = actions.issue_token(user=user, name=name, actor=actor_of(request), expires_at=ends_at, scope=scope)
            if not is_confirmed:
                transaction.set_rollback(True)
    except DomainError as error:
        return refused(request, error, lambda: _shown_again(request, user))
    if not is_confirmed:
        sentences = [
            f"Whoever has the token {name} acts as {username}: {scope.text()}, and never more than {username} may.",
            f"It ends on {ends_at:%Y-%m-%d} at {ends_at:%H:%M} UTC, or when a person revokes it.",
        ]
        return _asked(request, f"Issue the token {name}", sentences, user)
    return _secret(request, f"The token {name}", clear, user)


@login_required
@never_cache
def rotate_token(request: HttpRequest, username: str, pk: int) -> HttpResponse:
    """A new secret, which no other page shows; the previous secret stays valid for the chosen time."""
    user = _owner(request, username)
    token, is_confirmed = queries.get_token(user, pk), request.POST.get("confirmed") == "yes"
    hours = dict(OVERLAPS_H).get(request.POST.get("overlap_h", "24"))
    try:
        if hours is None:
            raise Invalid("invalid", "Choose how long the secret of before is good.")
        overlap = timedelta(hours=int(request.POST.get("overlap_h", "24")))
        with transaction.atomic():
            clear = actions.rotate_token(actor=actor_of(request), token=token, overlap=overlap)
            if not is_confirmed:
                transaction.set_rollback(True)
    except DomainError as error:
        return refused(request, error, lambda: _shown_again(request, user))
    if not is_confirmed:
        before = "ends at once" if not overlap else f"is good for {hours} more, and then never again"
        sentences = [f"The token {token.name} gets a new secret and a new end.", f"The secret of now {before}."]
        return _asked(request, f"Rotate the token {token.name}", sentences, user)
    return _secret(request, f"The new secret of {token.name}", clear, user)


@login_required
def revoke_token(request: HttpRequest, username: str, pk: int) -> HttpResponse:
    """Ends a token at once."""
    user = _owner(request, username)
    token = queries.get_token(user, pk)
    return act(
        request,
        lambda: actions.revoke_token(actor=actor_of(request), token=token),
        done=f"The token {token.name} has ended.",
        then=page_of(request, user),
        page=lambda: redirect(page_of(request, user)),
    )


def _asked(request: HttpRequest, title: str, sentences: list[str], user: User) -> HttpResponse:
    sent = [(name, value) for name, values in request.POST.lists() for value in values]
    kept = [(name, value) for name, value in sent if name not in {"csrfmiddlewaretoken", "confirmed"}]
    facts = {"title": title, "sentences": sentences, "kept": kept, "back": page_of(request, user)}
    return render(request, "settings/confirm.html", facts)


def _secret(request: HttpRequest, title: str, clear: str, user: User) -> HttpResponse:
    facts = {
        "title": title,
        "secret": clear,
        "says": "A program sends it as “Authorization: Bearer …”; the command line reads SLUICEGATE_TOKEN.",
        "back": page_of(request, user),
        "back_label": "To the tokens",
    }
    return render(request, "settings/secret.html", facts)


@login_required
def tokens(request: HttpRequest) -> HttpResponse:
    """Every token there is, for administrators."""
    require_administrator(request)
    filters = asked(request, Filter("q", "Name or person", hint="part of a name"), Filter("state", "State", STATES))
    text, state = (one.value for one in filters)
    rows = queries.all_tokens(text=text, state=state)
    facts: dict[str, Any] = {
        "page": Paginator(rows, TOKENS_PER_PAGE).get_page(request.GET.get("page")),
        "filters": filters,
        "is_filtered": bool(text or state),
        "now": timezone.now(),
    }
    return render_settings(request, "settings/tokens.html", "tokens", facts)
