"""Incidents: the list, and an incident with its timeline and the evidence that it kept."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from insights.actions import incidents as actions
from insights.core.incident import IncidentState
from insights.models import Incident
from insights.queries.incidents import get_incident, incidents_for, timeline
from registry.core.ownership import contacts_of
from registry.queries import visible_model, visible_models
from serving.environments.queries.inventory import environment_titles, get_environment
from web.listing import Filter, asked
from web.pages.events import with_subjects
from web.pages.forms import act, reason_in, version_in
from web.pages.session import live

PER_PAGE: Final = 50


def _listed(request: HttpRequest) -> dict[str, Any]:
    """Open incidents first, then the newest; narrowed by the address."""
    actor = actor_of(request)
    models = list(visible_models(actor).select_related("team"))
    filters = asked(
        request,
        Filter("model", "Model", [(one.slug, one.slug) for one in models]),
        Filter("environment", "Environment", environment_titles()),
    )
    chosen = {f"{one.name}__slug": one.value for one in filters if one.value}
    rows = incidents_for(actor).filter(**chosen).order_by("-state", "-pk")
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    return {
        "page": page,
        "filters": filters,
        "is_filtered": bool(chosen),
        "own": [one.slug for one in models if may(actor, Verb.HANDLE_ALARM, one.team.slug, one.slug)],
        "environments": environment_titles(),
    }


@login_required
def incidents(request: HttpRequest) -> HttpResponse:
    return render(request, "insights/incidents.html", _listed(request))


@live
def incidents_live(request: HttpRequest) -> HttpResponse:
    return render(request, "insights/_incidents_live.html", _listed(request))


def _facts(request: HttpRequest, incident: Incident) -> dict[str, Any]:
    actor, model, happened = actor_of(request), incident.model, timeline(incident)
    return {
        "incident": incident,
        "is_open": incident.state == IncidentState.OPEN,
        "may_handle": may(actor, Verb.HANDLE_ALARM, model.team.slug, model.slug),
        "contacts": contacts_of(model.ownership),
        "told": [(one.at, one.verb, " ".join(one.reason.split()), one.actor) for one in happened],
        "result": " ".join(incident.result.split()),
        "rows": with_subjects(happened[::-1]),
        "address": request.build_absolute_uri(reverse("incident", args=[incident.pk])),
        "no_green": incident.state == IncidentState.OPEN,
    }


@login_required
def incident(request: HttpRequest, pk: int) -> HttpResponse:
    """The page; with `?format=md` one file to keep or send."""
    facts = _facts(request, get_incident(actor_of(request), pk))
    if request.GET.get("format") != "md":
        return render(request, "insights/incident.html", facts)
    answer = HttpResponse(render_to_string("insights/incident.md", facts), content_type="text/markdown; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="incident-{pk}.md"'
    return answer


@live
def incident_live(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "insights/_incident_live.html", _facts(request, get_incident(actor_of(request), pk)))


@login_required
def open_one(request: HttpRequest) -> HttpResponse:
    actor, opened = actor_of(request), []

    def call() -> None:
        model = visible_model(actor, request.POST.get("model", ""))
        environment = get_environment(request.POST.get("environment", ""))
        title = request.POST.get("title", "")
        opened.append(actions.open_incident(actor=actor, model=model, environment=environment, title=title))

    def then() -> str:
        return reverse("incident", args=[opened[0].pk])

    return act(request, call, done="The incident is open.", then=then, page=lambda: incidents(request))


@login_required
def note(request: HttpRequest, pk: int) -> HttpResponse:
    return _handle(request, pk, actions.add_note, "Note added.")


@login_required
def close(request: HttpRequest, pk: int) -> HttpResponse:
    return _handle(request, pk, actions.close, "Closed.")


def _handle(request: HttpRequest, pk: int, verb: Any, done: str) -> HttpResponse:
    actor = actor_of(request)
    found = get_incident(actor, pk)

    def call() -> None:
        verb(actor=actor, incident=found, expected_version=version_in(request), reason=reason_in(request))

    return act(request, call, done=done, then=reverse("incident", args=[pk]), page=lambda: incident(request, pk))
