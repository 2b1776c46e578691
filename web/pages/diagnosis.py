"""The tab of a model that explains its traffic: since when, who, which stage, what changed."""

from __future__ import annotations

from typing import Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from insights.queries.diagnosis import explain
from serving.environments.queries.inventory import environment_titles, get_environment
from web.listing import Filter, asked
from web.pages.model_frame import frame, readable_model

_SINCE: Final = (("30min", "30 minutes"), ("1h", "1 hour"))


@login_required
def diagnosis(request: HttpRequest, slug: str) -> HttpResponse:
    """Of the environment in the address, or of the first one."""
    served, titles = readable_model(request, slug), environment_titles()
    filters = asked(request, Filter("environment", "Environment", titles), Filter("since", "Window", _SINCE))
    chosen = {one.name: one.value for one in filters if one.value}
    usual = next((one for one, _ in titles if one == "production"), titles[0][0] if titles else "")
    name = chosen.get("environment", usual)
    found = explain(served, get_environment(name), timezone.now(), chosen.get("since", "")) if name else None
    facts = {"told": found, "filters": filters, "is_filtered": bool(chosen), "no_green": True}
    return render(request, "insights/diagnosis.html", {**frame(served, "model_diagnosis"), **facts})
