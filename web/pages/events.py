"""Who did what, when and why."""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse

from accounts.api.requests import actor_of
from audit.queries import visible_events
from ledger.models import Event
from registry.models import Release
from registry.queries import find_release, releases_by_id

EVENTS_PER_PAGE = 50
#: The pages of subjects that are known by the number or name in the event.
PAGES = {"rollout": "rollout", "gate_run": "gate_run", "validation": "gate_run", "model": "model", "webhook": "webhook"}


@login_required
def events(request: HttpRequest) -> HttpResponse:
    wanted = request.GET.get("subject", "").replace("\x00", "").strip()
    rows = visible_events(actor_of(request)).order_by("-seq")
    if wanted:
        rows = rows.filter(_named(wanted))
    page = Paginator(rows, EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    facts = {"page": page, "rows": _with_subjects(page), "subject": wanted}
    return render(request, "audit/events.html", facts)


def _named(wanted: str) -> Q:
    """The events of a subject as the page writes it: `rollout 3`, `sentiment/r2` (a release, known by its id), or its bare name."""
    named = re.fullmatch("(.+)/r([0-9]{1,9})", wanted)
    release = find_release(named[1], named[2]) if named else None
    kind, _, name = wanted.partition(" ")
    return Q(subject_id__in=[wanted, *([str(release.pk)] if release else [])]) | Q(subject_type=kind, subject_id=name)


def _with_subjects(found: Iterable[Event]) -> list[tuple[Event, str, str]]:
    """(event, its subject in words, the subject's page or nothing)."""
    rows = list(found)
    ids = {UUID(row.subject_id) for row in rows if row.subject_type == "release"}
    releases = {str(pk): one for pk, one in releases_by_id(ids).items()}
    return [(row, *_subject(row, releases.get(row.subject_id))) for row in rows]


def _subject(event: Event, release: Release | None) -> tuple[str, str]:
    if release is not None and release.number is not None:
        slug = release.model.slug
        return f"{slug}/{release.name}", reverse("release", args=[slug, release.number])
    said = f"{event.subject_type} {event.subject_id}"
    try:
        return said, reverse(PAGES[event.subject_type], args=[event.subject_id])
    except (KeyError, NoReverseMatch):
        return said, ""
