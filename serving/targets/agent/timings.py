"""Times of an agent, and those that follow from a release or its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.models import Replica
from serving.targets.agent import warmup
from serving.targets.core.health import HUNG_AFTER_LAST_STABLE_S, HUNG_AFTER_S
from serving.traffic.queries.time_limits import limits_of, longest_request_s


@dataclass(frozen=True)
class AgentTimings:
    """Times of an agent, in seconds."""

    probe_every: float = 1.0
    #: Above 1 s: Triton needs exactly that long to say that a model process died, and that answer is worth having.
    probe_timeout: float = 1.5
    patient_timeout: float = 4.5  # of the probe after a late probe
    live_timeout: float = 2.0  # of the liveness call, which needs no model
    hung_after: float = HUNG_AFTER_S
    hung_after_last_stable: float = HUNG_AFTER_LAST_STABLE_S
    load_timeout: float = 120.0
    warmup_timeout: float = 60.0
    follow: float = 30.0  # for the gateways to acknowledge that they stopped routing here
    drain: float = 2.0  # for requests in flight after that
    stop_grace: float = 10.0
    backoff: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0)  # before each try to bring a server back; then it failed
    backoff_most: float = 15.0  # between all further tries for the last server of a stable release, which never fails
    healthy_after: float = 60.0  # serving this long makes earlier setbacks count no more
    retry_failed_after: float = 60.0  # a replica that once served is tried again


def load_timeout_of(envelope: dict[str, Any], *, default_s: float) -> float:
    """How long a server may load, in seconds: as declared, otherwise twice the longest declared load, but no less than usual."""
    declared = (envelope.get("lifecycle") or {}).get("load_timeout_s")
    loads_s = [(one.get("cold_start_s") or {}).get("load") or 0.0 for one in envelope.get("performance") or []]
    return float(declared) if declared else max(default_s, 2 * max(loads_s, default=0.0))


def has_streams_in(manifest: Mapping[str, Any]) -> bool:
    """Whether the release answers in streams, which have no time limit."""
    return warmup.limits_of(manifest).get("streaming") is True or manifest["serving"].get("decoupled") is True


def request_s(replica: Replica, manifest: Mapping[str, Any]) -> float:
    """How long one request to the replica's server may run, in seconds; see `longest_request_s`."""
    return longest_request_s(replica, has_streams=has_streams_in(manifest))


def warmup_timeout_of(replica: Replica, pace: AgentTimings) -> float:
    """How long one warm-up request may take, in seconds: no less than a user's request."""
    return max(pace.warmup_timeout, limits_of(replica.release.model).timeout_s)
