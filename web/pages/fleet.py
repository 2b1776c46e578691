"""The fleet: nodes with their facts and replicas, and the nodes that a release would fit."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.api.requests import actor_of
from registry.queries import get_release, visible_model
from serving.targets.queries.fleet import fleet_of
from serving.targets.queries.node_fit import fits_of
from web.listing import Filter, asked
from web.pages.session import live


def _page(request: HttpRequest, template: str = "serving/fleet.html") -> HttpResponse:
    actor = actor_of(request)
    filters = asked(
        request,
        Filter("node", "Node"),
        Filter("state", "State", [(one, one) for one in ("reachable", "silent")]),
        Filter("fit", "Where would it fit?", hint="my-model/r6"),
    )
    given = {one.name: one.value for one in filters}
    rows = [one for one in fleet_of(actor) if given["node"] in one.node.name and given["state"] in ("", one.state)]
    facts: dict[str, Any] = {
        "filters": filters, "is_filtered": any(given.values()), "rows": rows,
        "fit": given["fit"],
    }  # fmt: skip
    facts["no_green"] = any(one.is_silent for one in rows)
    if given["fit"]:
        slug, _, name = given["fit"].partition("/")
        visible_model(actor, slug)
        facts["fits"] = fits_of(get_release(slug, name))
    return render(request, template, facts)


@login_required
def fleet(request: HttpRequest) -> HttpResponse:
    return _page(request)


@live
def fleet_shown(request: HttpRequest) -> HttpResponse:
    """The nodes that the page shows, by the same filters."""
    return _page(request, "serving/_fleet_shown.html")
