"""The tab of a model that explains its traffic: since when, who, which stage, what changed."""

from __future__ import annotations

from typing import Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from insights.queries.diagnosis import explain
from ledger.queries import clock
from web.pages.model_frame import frame, range_asked, readable_model
from web.pages.production import SPANS

_SPANS: Final = {"30min": ("30 minutes",), **SPANS}


@login_required
def diagnosis(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    asked = range_asked(request, served, _SPANS)
    told = explain(served, asked["environment"], clock.now(), asked["span"]) if asked["environment"] else None
    return render(
        request,
        "insights/diagnosis.html",
        {**frame(served, "model_diagnosis"), **asked, "told": told, "no_green": True},
    )
