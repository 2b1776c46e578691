"""One's own account: password, tokens, sessions, and how one likes the pages."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts import queries
from accounts.api.requests import actor_of
from web.pages.people import ROLE_TEXTS, audit_url
from web.pages.token_facts import token_facts


def show_account(request: HttpRequest) -> HttpResponse:
    """The page, also after a form on it was refused."""
    actor = actor_of(request)
    user = queries.get_user(actor.name)
    facts = {
        "held": [(team, role.value, ROLE_TEXTS[role]) for team, role in actor.roles],
        "is_admin": actor.is_admin,
        "audit_url": audit_url(user.username),
        **token_facts(request, user),
    }
    return render(request, "web/account.html", facts)


@login_required
def account(request: HttpRequest) -> HttpResponse:
    return show_account(request)
