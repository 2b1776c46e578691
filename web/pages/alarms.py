"""Alarms: the list, and an alarm with its way back and its history."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from audit.queries import visible_events
from registry.core.ownership import contacts_of
from registry.queries import visible_models
from rollouts.actions import alarms as actions
from rollouts.core.watch.lifecycle import LIVE
from rollouts.models import Alarm
from rollouts.queries.alarms import alarms_for, get_alarm, objectives_now, prolonged_window, watched_routes
from rollouts.queries.undo_window import is_closed, is_open, last_promoted
from serving.environments.queries.inventory import environment_titles
from web.listing import Filter, asked
from web.pages.events import cursor_page, with_subjects
from web.pages.forms import act, reason_in, version_in
from web.pages.session import live

PER_PAGE: Final = 50
#: Closed alarms stay on the list for so long.
SHOWN_FOR: Final = timedelta(days=30)
#: An alarm is muted for so many hours.
MUTE_HOURS: Final = (1, 4, 12, 24, 72, 168)


def _listed(request: HttpRequest) -> dict[str, Any]:
    """Live alarms first, open pages before all others, then closed ones, the newest first; narrowed by the address."""
    actor = actor_of(request)
    slugs = visible_models(actor).values_list("slug", flat=True)
    filters = asked(
        request,
        Filter("model", "Model", [(slug, slug) for slug in slugs]),
        Filter("environment", "Environment", environment_titles()),
    )
    chosen = {f"{one.name}__slug": one.value for one in filters if one.value}
    since = timezone.now() - SHOWN_FOR
    alarms = (
        alarms_for(actor).filter(**chosen).exclude(closed_at__lt=since).order_by("-closed_at", "-state", "tier", "-pk")
    )
    page = Paginator(alarms, PER_PAGE).get_page(request.GET.get("page"))
    return {"page": page, "filters": filters, "is_filtered": bool(chosen), "days": SHOWN_FOR.days}


@login_required
def alarms(request: HttpRequest) -> HttpResponse:
    return render(request, "rollouts/alarms.html", _listed(request))


@live
def alarms_live(request: HttpRequest) -> HttpResponse:
    return render(request, "rollouts/_alarms_live.html", _listed(request))


def _facts(request: HttpRequest, alarm: Alarm) -> dict[str, Any]:
    actor, model = actor_of(request), alarm.model
    route = next((one for one in watched_routes(model) if one.environment_id == alarm.environment_id), None)
    last = last_promoted(model, alarm.environment) if route is not None else None
    is_undone = last is not None and is_open(last, route)
    page = cursor_page(request, visible_events(actor).filter(subject_type="alarm", subject_id=str(alarm.pk)))
    return {
        "alarm": alarm,
        "is_live": alarm.state in LIVE,
        "mute_hours": MUTE_HOURS,
        "may_handle": may(actor, Verb.HANDLE_ALARM, model.team.slug, model.slug),
        "may_shut": may(actor, Verb.ROLL_BACK, model.team.slug, model.slug),
        "contacts": contacts_of(model.ownership),
        "route": route,
        "objectives": objectives_now(route, timezone.now()) if route is not None else [],
        "promoted": last,
        "is_open": is_undone,
        "is_closed": last is not None and is_closed(last, route, known_open=is_undone),
        "prolonged": prolonged_window(last, route) if last is not None and is_undone else None,
        "no_green": alarm.state in LIVE,
        "page": page,
        "rows": with_subjects(page.rows),
    }


@login_required
def alarm(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "rollouts/alarm.html", _facts(request, get_alarm(actor_of(request), pk)))


@live
def alarm_live(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "rollouts/_alarm_live.html", _facts(request, get_alarm(actor_of(request), pk)))


@login_required
def acknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    return _handle(request, pk, actions.acknowledge, "You look after this alarm.")


@login_required
def close(request: HttpRequest, pk: int) -> HttpResponse:
    return _handle(request, pk, actions.close, "Closed. If the objective still burns, the alarm opens again.")


@login_required
def mute(request: HttpRequest, pk: int) -> HttpResponse:
    hours = request.POST.get("hours", "")
    until = timezone.now() + timedelta(hours=int(hours) if hours in {str(one) for one in MUTE_HOURS} else 0)
    return _handle(request, pk, actions.mute, "Muted. Only its end is sent.", until=until)


@login_required
def unmute(request: HttpRequest, pk: int) -> HttpResponse:
    return _handle(request, pk, actions.unmute, "What happens to the alarm is sent again.")


def _handle(request: HttpRequest, pk: int, verb: Any, done: str, **more: Any) -> HttpResponse:
    actor = actor_of(request)
    found = get_alarm(actor, pk)

    def call() -> None:
        verb(actor=actor, alarm=found, expected_version=version_in(request), reason=reason_in(request), **more)

    return act(request, call, done=done, then=reverse("alarm", args=[pk]), page=lambda: alarm(request, pk))
