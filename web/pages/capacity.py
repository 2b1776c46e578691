"""A release's capacity: what its reports prove of one replica, replicas for a forecast, and the measured envelope."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import yaml
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from ledger.core.errors import NotFound
from registry.models import Release
from serving.queries.replicas import replica_plans
from validators.api.capacity import ForecastIn
from validators.core.capacity_plan import Forecast, plan_for
from validators.queries.capacity import PlanBasis, measured_envelope, plan_basis_of
from web.pages.release_frame import frame, readable_release

#: (the API's field, label, unit, what it is until something is typed)
_FIELDS = (
    ("peak_per_s", "Peak", "requests a second", ""),
    ("growth_frac", "Growth until then", "0.2 is a fifth", "0"),
    ("burst_factor", "A burst", "times the peak", "1"),
    ("retry_frac", "Sent again", "per request", "0"),
    ("ramp_frac_per_min", "Growth in a minute", "while a replica starts", "0"),
    ("spare", "May be lost", "replicas", "1"),
    ("surge_frac", "Beside them in a rollout", "1 is as many", "1"),
    ("mean_per_s", "Mean", "requests a second, for the cost", ""),
    ("price", "Price of a replica", "an hour", ""),
)


@login_required
def capacity(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """What is typed stands in the address, so that a plan can be sent to somebody."""
    actor = actor_of(request)
    release = readable_release(actor, slug, number)
    found = plan_basis_of(release)
    typed = {name: request.GET.get(name, given).strip() for name, _, _, given in _FIELDS}
    facts: dict[str, Any] = {
        "fields": [(name, label, unit, typed[name]) for name, label, unit, _ in _FIELDS],
        "found": found,
        "envelope": _envelope_of(release),
        "problems": [],
        **(_planned(typed, found) if typed["peak_per_s"] else {}),
    }
    if facts.get("plan", {}).get("replicas") and may(actor, Verb.SCALE_RELEASE, release.model.team.slug, slug):
        facts["places"] = replica_plans(release=release)
    return render(request, "registry/release_capacity.html", {**frame(release, "release_capacity"), **facts})


def _planned(typed: dict[str, str], found: PlanBasis | None) -> dict[str, Any]:
    """The plan for what was typed, or what is wrong with that."""
    numbers = {name: _number(text) for name, text in typed.items() if text}
    prices = {"price": numbers.pop("price")} if typed["price"] else {}
    asked = ForecastIn(data={**numbers, "prices_per_hour": prices})
    if not asked.is_valid():
        labels = {name: label for name, label, _, _ in _FIELDS}
        return {"problems": [labels.get(name, labels["price"]) for name in asked.errors]}
    forecast = dict(asked.validated_data)
    price = forecast.pop("prices_per_hour").get("price")
    basis = found.basis if found else None
    per_hour = {basis.hardware: price} if basis and price is not None else {}
    return {"plan": asdict(plan_for(Forecast(**forecast), basis, per_hour))}


def _number(text: str) -> float | int | str:
    """A finite number, whole where it is written so; else the text, which is refused as none."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return value if math.isfinite(value := float(text)) else text
    except ValueError:
        return text


def _envelope_of(release: Release) -> str:
    """The measured envelope as it is written into a release.yaml; empty where nothing was measured."""
    try:
        measured = measured_envelope(release)
    except NotFound:
        return ""
    return yaml.safe_dump({"envelope": measured}, sort_keys=False, allow_unicode=True)
