"""Settings of a model for its gateways: slow requests, tenants, retries. Pure.

Time limits are in `serving.traffic.queries.time_limits`, which agents read too.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from serving.traffic.core.request_classes import RequestClasses
from serving.traffic.core.tenants import Tenants

log = logging.getLogger(__name__)


class Stated(Protocol):
    """What a model states for itself: a `ServedModel`, or what was read of one."""

    @property
    def slug(self) -> str: ...
    @property
    def objectives(self) -> Any: ...
    @property
    def traffic_policy(self) -> Any: ...


def slow_ms_of(model: Stated) -> float | None:
    """From how many milliseconds on the model's own objective calls a request slow; None where it states none."""
    objectives = model.objectives if isinstance(model.objectives, dict) else {}
    slow = objectives.get("slow")
    told = slow.get("threshold_ms") if isinstance(slow, dict) else None
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) else None


def tenants_of(model: Stated) -> Tenants | None:
    """The tenants of the model's own traffic policy; None where it states none, or none that can be read."""
    try:
        return Tenants.of(model.traffic_policy)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("%s: its traffic policy cannot be read (%r); nobody is limited", model.slug, error)
        return None


def classes_of(model: Stated) -> RequestClasses | None:
    """The classes of requests of the model's own traffic policy; None where it states none, or none that can be read."""
    try:
        return RequestClasses.of(model.traffic_policy)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("%s: its classes cannot be read (%r); all requests share their places", model.slug, error)
        return None


def is_idempotent(model: Stated) -> bool:
    """Whether a request to the model may be asked twice: so it is unless its traffic policy says otherwise."""
    return _policy_of(model).get("idempotent", True) is True


def retries_resets(model: Stated) -> bool:
    """Whether a request is asked again that was in flight when its connection broke: only where the model's traffic policy says so."""
    return _policy_of(model).get("retry_on_reset", False) is True


def _policy_of(model: Stated) -> dict[str, Any]:
    return model.traffic_policy if isinstance(model.traffic_policy, dict) else {}
