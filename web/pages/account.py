"""One's own account: password, tokens, sessions, and how one likes the pages."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts import queries
from accounts.api.requests import actor_of
from notifications.actions import choose_mails
from notifications.adapters import mail_sender
from notifications.queries.recipients import mail_choice_of
from web.pages.forms import act
from web.pages.people import ROLE_TEXTS, audit_url
from web.pages.token_facts import token_facts


def show_account(request: HttpRequest) -> HttpResponse:
    """The page, also after a form on it was refused."""
    actor = actor_of(request)
    user = queries.get_user(actor.name)
    facts = {
        "mails": mail_choice_of(user),
        "has_mail": mail_sender.is_configured(),
        "held": [(team, role.value, ROLE_TEXTS[role]) for team, role in actor.roles],
        "is_admin": actor.is_admin,
        "audit_url": audit_url(user.username),
        **token_facts(request, user),
    }
    return render(request, "web/account.html", facts)


@login_required
def account(request: HttpRequest) -> HttpResponse:
    return show_account(request)


@login_required
def choose(request: HttpRequest) -> HttpResponse:
    """The person's choice of mails, and their address."""
    given = request.POST

    def verb() -> None:
        actor = actor_of(request)
        choose_mails(
            actor=actor, user=queries.get_user(actor.name), address=given.get("address", ""),
            wants_approvals="approvals" in given, wants_rollbacks="rollbacks" in given,
        )  # fmt: skip

    return act(
        request, verb, done="Your choice of mails is kept.", then=reverse("account"), page=lambda: show_account(request)
    )
