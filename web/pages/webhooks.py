"""Webhooks: the list and the page of one, with its deliveries and its verbs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from accounts.models import Team
from accounts.queries import teams
from ledger.core.errors import DomainError, Invalid
from notifications import actions, queries
from notifications.actions.webhooks import OVERLAP_S
from notifications.adapters import mail_sender
from notifications.core.delivery import ENDED, DeliveryState, ReceiverKind
from notifications.core.formats import PAGERDUTY_URL, SECRET_ADDRESS, WebhookFormat
from notifications.dispatcher.outbound_message import example_of
from notifications.dispatcher.rounds import send_test
from web.pages.event_picker import EVERYTHING, groups, picked
from web.pages.forms import act, refused, version_in
from web.pages.settings_frame import render_settings

DELIVERIES_PER_PAGE = 25
#: How far back “send again” may go from the page; the command line takes any time.
HOURS_BACK = (1, 6, 24, 72, 168)
#: What a new one may be: (the form's value, its words). Every one but `email` is a format of a webhook.
HOW = (
    ("signed", "signed request"),
    ("slack", "Slack: an incoming webhook"),
    ("teams", "Teams: a workflow's webhook"),
    ("pagerduty", "PagerDuty: Events API v2"),
    ("alertmanager", "Alertmanager: alarms alone"),
    ("email", "e-mail"),
)


def _teams(request: HttpRequest) -> list[Team]:
    actor = actor_of(request)
    return [team for team in teams() if may(actor, Verb.MANAGE_WEBHOOKS, team.slug)]


def _picker(chosen: list[str]) -> dict[str, Any]:
    """Of `_event_picker.html`."""
    return {"groups": groups(chosen), "everything": EVERYTHING in chosen}


def _list(request: HttpRequest, form: dict[str, Any]) -> HttpResponse:
    actor = actor_of(request)
    facts = {
        "rows": queries.webhooks_of(actor),
        "teams": _teams(request),
        "is_admin": actor.is_admin,
        "has_mail": mail_sender.is_configured(),
        "how": [one for one in HOW if one[0] != "email" or mail_sender.is_configured()],
        "pagerduty_url": PAGERDUTY_URL,
        "public_url": settings.PUBLIC_URL,
        "form": form,
        **_picker(form["verbs"].split()),
    }
    return render_settings(request, "notifications/webhooks.html", "webhooks", facts)


@login_required
def webhooks(request: HttpRequest) -> HttpResponse:
    return _list(request, {"kind": "signed", "verbs": "rollout.*"})


@login_required
@never_cache
def create(request: HttpRequest) -> HttpResponse:
    """The new webhook with its secret, which no other page shows; or the form with the person's input and its problems."""
    form = {name: request.POST.get(name, "").strip() for name in ("team", "kind", "target", "title")}
    form["verbs"] = picked(request.POST)
    is_mail = form["kind"] == "email"
    try:
        made, secret = actions.create_webhook(
            actor=actor_of(request),
            team=form["team"] or None,
            kind="email" if is_mail else "webhook",
            format=form["kind"] if form["kind"] in set(WebhookFormat) else "",
            target=form["target"],
            verbs=form["verbs"].split(),
            title=form["title"],
            routing_key=request.POST.get("routing_key", "").strip(),
        )
    except DomainError as error:
        return refused(request, error, lambda: _list(request, form))
    if not secret:
        messages.success(
            request,
            f"Done: {'e-mails go' if is_mail else 'events go'} there from now on. A test shows whether it works.",
        )
        return redirect("webhook", made.pk)
    return render(request, "notifications/webhook_secret.html", {"row": made, "secret": secret})


@login_required
def webhook(request: HttpRequest, pk: int) -> HttpResponse:
    row = queries.get_webhook(actor_of(request), pk)
    wanted = request.GET.get("state", "")
    rows = queries.deliveries_of(row)
    rows = rows.filter(state=wanted) if wanted in set(DeliveryState) else rows
    page = Paginator(rows, DELIVERIES_PER_PAGE).get_page(request.GET.get("page"))
    facts = {
        "row": row,
        "page": page,
        "state": wanted,
        "states": [state.value for state in DeliveryState],
        "ended": [state.value for state in ENDED],
        "hours": HOURS_BACK,
        "is_secret_address": row.format in SECRET_ADDRESS,
        "example": example_of(row) if row.kind == ReceiverKind.WEBHOOK else "",
        "public_url": settings.PUBLIC_URL,
        **_picker(picked(request.POST).split() if "verbs" in request.POST else row.verbs),
    }
    return render(request, "notifications/webhook.html", facts)


@login_required
def test(request: HttpRequest, pk: int) -> HttpResponse:
    actor = actor_of(request)
    sent = send_test(actor=actor, webhook=queries.get_webhook(actor, pk))
    tried = sent.tries.all()[0]
    if sent.state == DeliveryState.DELIVERED:
        messages.success(request, f"The test arrived: {tried.status_code or 'taken'} in {tried.duration_ms} ms.")
    else:
        messages.error(request, f"The test did not arrive: {tried.error}")
    return redirect("webhook", pk)


@login_required
@never_cache
def rotate(request: HttpRequest, pk: int) -> HttpResponse:
    actor = actor_of(request)
    row = queries.get_webhook(actor, pk)
    overlap_s = 0.0 if request.POST.get("at_once") else OVERLAP_S
    try:
        row, secret = actions.rotate_secret(
            actor=actor, webhook=row, expected_version=version_in(request), overlap_s=overlap_s
        )
    except DomainError as error:
        return refused(request, error, lambda: webhook(request, pk))
    return render(request, "notifications/webhook_secret.html", {"row": row, "secret": secret})


@login_required
def change(request: HttpRequest, pk: int) -> HttpResponse:
    """Applies those of the fields that the form has."""
    given = request.POST
    changes: dict[str, Any] = {name: given[name].strip() for name in ("target", "title") if name in given}
    changes |= {"verbs": picked(given).split()} if "verbs" in given else {}
    changes |= {"is_active": given["is_active"] == "1"} if "is_active" in given else {}
    changes |= {"routing_key": key} if (key := given.get("routing_key", "").strip()) else {}

    def verb() -> None:
        actor = actor_of(request)
        row = queries.get_webhook(actor, pk)
        if row.format in SECRET_ADDRESS and not changes.get("target"):
            changes.pop("target", None)  # it is not shown, and left out it stays
        actions.change_webhook(actor=actor, webhook=row, expected_version=version_in(request), changes=changes)

    then = reverse("webhook", args=[pk])
    return act(request, verb, done="The webhook is changed.", then=then, page=lambda: webhook(request, pk))


@login_required
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    def verb() -> None:
        actor = actor_of(request)
        row = queries.get_webhook(actor, pk)
        actions.delete_webhook(actor=actor, webhook=row, expected_version=version_in(request))

    then = reverse("webhooks")
    return act(request, verb, done=f"Webhook {pk} is deleted.", then=then, page=lambda: webhook(request, pk))


@login_required
def replay(request: HttpRequest, pk: int) -> HttpResponse:
    actor = actor_of(request)
    row = queries.get_webhook(actor, pk)
    try:
        hours = request.POST.get("hours", "")
        if hours not in {str(choice) for choice in HOURS_BACK}:
            raise Invalid("no_such_period", "Choose how far back, from the list.")
        since = timezone.now() - timedelta(hours=int(hours))
        count = actions.replay_since(actor=actor, webhook=row, since=since)
    except DomainError as error:
        return refused(request, error, lambda: webhook(request, pk))
    messages.success(request, f"Redelivered: {count}, without pending deliveries.")
    return redirect("webhook", pk)


@login_required
def replay_one(request: HttpRequest, pk: int, delivery: UUID) -> HttpResponse:
    def verb() -> None:
        actor = actor_of(request)
        row = queries.get_webhook(actor, pk)
        actions.replay_delivery(actor=actor, delivery=queries.get_delivery(row, delivery))

    then = reverse("webhook", args=[pk])
    return act(request, verb, done="It is sent again in a few seconds.", then=then, page=lambda: webhook(request, pk))
