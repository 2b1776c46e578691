"""How long one request to a model may take: its own objectives, and the settings for what these leave open."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from django.conf import settings

from serving.models import Replica
from serving.traffic.core.request_limits import LONGEST_S, Limits, limits_stated

log = logging.getLogger(__name__)


class Timed(Protocol):
    """A `ServedModel`, or its columns."""

    @property
    def slug(self) -> str: ...
    @property
    def objectives(self) -> Any: ...


def default_limits() -> Limits:
    """The installation's, for models that state none."""
    return Limits(settings.GATEWAY_TIMEOUT_S, settings.GATEWAY_ATTEMPT_TIMEOUT_S)


def limits_of(model: Timed) -> Limits:
    """Time limits of requests to the model, as `serving.traffic.core.request_limits.limits_stated` derives them."""
    default = default_limits()
    objectives = model.objectives if isinstance(model.objectives, dict) else {}
    try:
        return limits_stated(objectives, default)
    except (TypeError, ValueError) as error:
        log.warning("%s: %s; the defaults are used", model.slug, error)
        return default


def longest_request_s(replica: Replica, *, has_streams: bool) -> float:
    """How long one request to the replica's server may run, in seconds.

    Streams have no limit of their own, and without a gateway the requests come from gates: their policy may give more
    time than users get. Both count as the longest that a gateway waits for any request.
    """
    if has_streams or not replica.environment.is_routed:
        return LONGEST_S
    return limits_of(replica.release.model).timeout_s
