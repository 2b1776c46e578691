"""What every tab of a model's page begins with: the model, the tabs, and what the person may do."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from accounts.api.requests import actor_of
from registry.models import ServedModel
from registry.queries import visible_model

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
