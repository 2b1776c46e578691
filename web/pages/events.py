"""Who did what, when and why."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.api import actor_of
from ledger.scope import visible_events

EVENTS_PER_PAGE = 50


@login_required
def events(request: HttpRequest) -> HttpResponse:
    wanted = request.GET.get("subject", "").replace("\x00", "").strip()
    rows = visible_events(actor_of(request)).order_by("-seq")
    if wanted:
        rows = rows.filter(subject_id=wanted)
    page = Paginator(rows, EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "ledger/events.html", {"page": page, "subject": wanted})
