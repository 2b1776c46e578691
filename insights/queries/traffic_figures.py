"""What gateways counted of each release, as figures. Each gateway is read anew whenever Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import structlog

from insights.core.figures import Buckets, Figure, FigureType, Values
from registry.models import Release
from serving.models import Gateway
from serving.ports import ArmCounters, GatewayCounters, GatewayError, TrafficCounters
from serving.traffic.core.buckets import EDGES_US

log = structlog.get_logger(__name__)
#: A gateway that takes longer is left out of this reading.
TIMEOUT_S: Final = 2.0
#: Eight edges of those that gateways count, in µs: a series for each release and gateway.
EXPORTED_US: Final = (5_000, 20_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000)

_OF_MODEL: Final = ("environment", "gateway", "model")
_LABELS: Final = (*_OF_MODEL, "release")
REQUESTS = Figure(
    "sluicegate_requests",
    FigureType.COUNTER,
    "Inference requests as their users saw them, after retries.",
    (*_OF_MODEL, "outcome"),
)
FIRST_ATTEMPTS = Figure(
    "sluicegate_first_attempts",
    FigureType.COUNTER,
    "First attempts at the release that the split chose. A failed one may have been answered by stable.",
    (*_LABELS, "outcome"),
)
DURATION = Figure(
    "sluicegate_first_attempt_duration_seconds",
    FigureType.HISTOGRAM,
    "Time of first attempts that ended, answered or failed.",
    _LABELS,
)
UP = Figure(
    "sluicegate_gateway_up", FigureType.GAUGE, "1 if the gateway's counts could be read.", ("environment", "gateway")
)


def read_traffic(counters: TrafficCounters) -> list[tuple[Figure, Values]]:
    """Every figure of every gateway. A gateway that cannot be read is told by `sluicegate_gateway_up` alone."""
    requests, attempts, durations, up = (dict[tuple[str, ...], float | Buckets]() for _ in range(4))
    names = {one.digest: one.name for one in Release.objects.exclude(digest="").only("digest", "number")}
    for gateway in Gateway.objects.select_related("environment").order_by("name"):
        place = (gateway.environment.slug, gateway.name)
        try:
            read = counters.read(gateway=gateway.name, admin_url=gateway.admin_url, timeout_s=TIMEOUT_S)
        except GatewayError as error:
            log.info("gateway_not_exported", gateway=gateway.name, error=str(error))
            up[place] = 0.0
            continue
        up[place] = 1.0
        for model, counted in read.items():
            requests |= {(*place, model, outcome): float(count) for outcome, count in _of_users(counted)}
            for digest, arm in counted.by_release.items():
                labels = (*place, model, names.get(digest, "unknown"))
                attempts |= {(*labels, outcome): float(count) for outcome, count in _of_release(arm)}
                durations[labels] = _buckets(arm)
    return [(REQUESTS, requests), (FIRST_ATTEMPTS, attempts), (DURATION, durations), (UP, up)]


def _of_users(counted: GatewayCounters) -> Iterator[tuple[str, int]]:
    failed = counted.user_errors - counted.user_shed
    yield "answered", counted.user_requests - counted.user_errors
    yield "failed", failed
    yield "shed", counted.user_shed


def _of_release(arm: ArmCounters) -> Iterator[tuple[str, int]]:
    yield "answered", arm.decided - arm.failed
    yield "failed", arm.failed
    yield "shed", arm.shed
    yield "refused", arm.refused
    yield "aborted", arm.aborted


def _buckets(arm: ArmCounters) -> Buckets:
    """The sum is the least that it can be: each attempt at the lower edge of its class, since gateways count classes alone."""
    counts = [arm.latency_us.get(edge, 0) for edge in EDGES_US]
    lower, total = 0, 0.0
    for edge, count, before in zip(EDGES_US, counts, [0, *counts], strict=False):
        total += lower / 1e6 * max(0, count - before)
        lower = edge
    total += lower / 1e6 * max(0, arm.timed - counts[-1])
    cumulative = [arm.latency_us.get(edge, 0) for edge in EXPORTED_US]
    return Buckets(tuple(edge / 1e6 for edge in EXPORTED_US), (*cumulative, arm.timed), total)
