"""Head of every tab of a model's page: the model, the tabs, and the person's permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from accounts.api.requests import actor_of
from registry.models import ServedModel
from registry.queries import visible_model
from serving.traffic.queries.routes import routes_of

#: (label, name of the page), in the order in which they stand.
TABS = (
    ("Releases", "model"),
    ("Serving", "model_serving"),
    ("Production", "model_production"),
    ("Diagnosis", "model_diagnosis"),
    ("Sleep", "model_sleep"),
    ("Golden sets", "model_golden_sets"),
    ("Aliases", "model_aliases"),
    ("Policies", "model_policies"),
    ("Ownership", "model_ownership"),
    ("Activity", "model_activity"),
)


def readable_model(request: HttpRequest, slug: str) -> ServedModel:
    """The model, or NotFound in the same words for a person who may not read it."""
    return visible_model(actor_of(request), slug)


def frame(served: ServedModel, current: str) -> dict[str, Any]:
    """The facts that `registry/model_frame.html` needs; `current` is the name of the tab's page."""
    tabs = [(label, reverse(name, args=[served.slug]), name == current, None) for label, name in TABS]
    return {"model": served, "tabs": tabs}


def range_asked(request: HttpRequest, served: ServedModel, spans: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that `_parts/range_form.html` needs. A model without a route has the environment None; the usual span is an hour."""
    environments = {route.environment.slug: route.environment for route in routes_of(served)}
    asked = environments.get(request.GET.get("environment", "production"))
    span = request.GET.get("span", "")
    return {
        "spans": spans,
        "span": span if span in spans else "1h",
        "environments": list(environments.values()),
        "environment": asked or next(iter(environments.values()), None),
    }
