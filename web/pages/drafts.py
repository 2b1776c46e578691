"""The drafts of one's teams: how much of each is there, to go on with or to discard."""

from __future__ import annotations

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from registry import actions
from registry.queries import visible_release_by_id
from registry.queries.drafts import drafts_for
from web.listing import Filter, asked
from web.pages.forms import act, version_in

DRAFTS_PER_PAGE = 25


@login_required
def drafts(request: HttpRequest) -> HttpResponse:
    actor = actor_of(request)
    whose = (("mine", "mine"),)
    filters = asked(request, Filter("model", "Model", hint="sentiment"), Filter("who", "Whose", whose))
    model, who = (one.value for one in filters)
    rows = drafts_for(actor, model=model, author=actor.name if who else "")
    page = Paginator(rows, DRAFTS_PER_PAGE).get_page(request.GET.get("page"))
    facts = {
        "page": page,
        "rows": [(one, may(actor, Verb.PUSH_RELEASE, one.model.team.slug)) for one in page],
        "filters": filters,
        "is_filtered": bool(model or who),
    }
    return render(request, "registry/drafts.html", facts)


@login_required
def discard(request: HttpRequest, pk: UUID) -> HttpResponse:
    def verb() -> None:
        actor = actor_of(request)
        draft = visible_release_by_id(actor, pk)
        actions.discard_draft(actor=actor, release=draft, expected_version=version_in(request))

    done = "The draft is discarded, with what nothing else has of its bytes."
    return act(request, verb, done=done, then=reverse("drafts"), page=lambda: drafts(request))
