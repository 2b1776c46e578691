"""The tab of a model's aliases: their targets now and before, and the forms that move them."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from registry.actions.aliases import set_alias
from registry.models import ServedModel
from registry.queries import get_release
from registry.queries.aliases import aliases_of, moves_of_aliases
from web.pages.forms import act, optional_reason_in, version_in
from web.pages.model_frame import frame, readable_model

MOVES_PER_PAGE = 25


def _page(request: HttpRequest, served: ServedModel) -> HttpResponse:
    wanted = request.GET.get("alias", "").replace("\x00", "")
    moves = moves_of_aliases(served)
    moves = moves.filter(alias__name=wanted) if wanted else moves
    facts: dict[str, Any] = {
        "aliases": aliases_of(served),
        "page": Paginator(moves, MOVES_PER_PAGE).get_page(request.GET.get("page")),
        "wanted": wanted,
        "may_set": may(actor_of(request), Verb.SET_ALIAS, served.team.slug, served.slug),
    }
    return render(request, "registry/model_aliases.html", {**frame(served, "model_aliases"), **facts})


@login_required
def aliases(request: HttpRequest, slug: str) -> HttpResponse:
    return _page(request, readable_model(request, slug))


@login_required
def move(request: HttpRequest, slug: str) -> HttpResponse:
    """Sets, moves or clears an alias, if it still is as the page showed it."""
    served = readable_model(request, slug)
    name, to = request.POST.get("name", "").strip(), request.POST.get("release", "").strip()
    clears = "clear" in request.POST

    def verb() -> None:
        set_alias(
            actor=actor_of(request),
            model=served,
            name=name,
            release=None if clears else get_release(served.slug, to),
            expected_version=version_in(request),
            reason=optional_reason_in(request),
        )

    done = f"{name} points nowhere now." if clears else f"{name} points to {to} now."
    then = reverse("model_aliases", args=[slug])
    return act(request, verb, done=done, then=then, page=lambda: _page(request, served))
