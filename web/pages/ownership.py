"""Who is called when a model breaks: shown to its readers, changed by its team."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from registry.actions import change_model
from registry.core.ownership import LABELS, contacts_of
from registry.models import ServedModel
from web.pages.forms import act, version_in
from web.pages.model_frame import frame, readable_model


@login_required
def ownership(request: HttpRequest, slug: str) -> HttpResponse:
    """The page and its form; a refused form keeps the person's input."""
    served = readable_model(request, slug)
    if request.method != "POST":
        return _page(request, served, served.ownership)
    if request.POST.get("about"):
        return _about(request, served)
    given = {name: request.POST.get(name, "").strip() for name in LABELS}
    return act(
        request,
        lambda: change_model(
            actor=actor_of(request),
            model=served,
            expected_version=version_in(request),
            changes={"ownership": {name: text for name, text in given.items() if text}},
        ),
        done="Kept.",
        then=reverse("model_ownership", args=[slug]),
        page=lambda: _page(request, served, given),
    )


def _about(request: HttpRequest, served: ServedModel) -> HttpResponse:
    """The title and the description as they were typed."""
    given = {name: request.POST.get(name, "").strip() for name in ("title", "description")}
    return act(
        request,
        lambda: change_model(
            actor=actor_of(request), model=served, expected_version=version_in(request), changes=given
        ),
        done="The title and the description are changed.",
        then=reverse("model_ownership", args=[served.slug]),
        page=lambda: _page(request, served, served.ownership, given),
    )


def _page(
    request: HttpRequest, served: ServedModel, form: Mapping[str, Any], about: Mapping[str, str] | None = None
) -> HttpResponse:
    facts = {
        "about": about or {"title": served.title, "description": served.description},
        "contacts": contacts_of(served.ownership),
        "form": {name: form.get(name, "") for name in LABELS},
        "may_edit": may(actor_of(request), Verb.EDIT_MODEL, served.team.slug, served.slug),
    }
    return render(request, "registry/model_ownership.html", {**frame(served, "model_ownership"), **facts})
