"""The ports to what is counted elsewhere: in gateways, and in metrics of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import datetime
from typing import Protocol

from serving.ports.errors import PortError


class GatewayError(PortError):
    """`unreachable` · `timeout` · `malformed`."""

    REASONS = frozenset({"unreachable", "timeout", "malformed"})


@dataclass(frozen=True)
class Spread:
    """A histogram of first attempts: `under` maps an upper edge to how many of `count` had less.

    The callers of `left` further attempts left before the value was known. `left_under` counts their waits alike. The value would have
    been larger than the wait.
    """

    count: int = 0
    under: Mapping[int, int] = field(default_factory=dict)
    left: int = 0
    left_under: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: Spread) -> Spread:
        under, left_under = dict(self.under), dict(self.left_under)
        for to, more in ((under, other.under), (left_under, other.left_under)):
            for edge, count in more.items():
                to[edge] = to.get(edge, 0) + count
        return Spread(self.count + other.count, under, self.left + other.left, left_under)

    def over(self, edge: int) -> int:
        return max(0, self.count - self.under.get(edge, self.count))

    def left_over(self, edge: int) -> int:
        return max(0, self.left - self.left_under.get(edge, self.left))


#: The times of streams: until the first text, and the largest gap between texts. In place of a name: of whole attempts.
FIRST_TEXT, LARGEST_GAP, WHOLE = "first", "gap", ""


@dataclass(frozen=True)
class ArmCounters:
    """Cumulative counts of one release at one gateway since the gateway's `epoch`.

    What the split drew for it, counted when the request ends: `routed` is every such inference, `size_bytes` maps an upper edge
    of their bodies' size to the cumulative count of those under it. `decided` are those whose first attempt was made on this
    release's servers and brought an outcome; of these `failed` are those whose first attempt failed (5xx, gRPC UNKNOWN,
    DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS or UNIMPLEMENTED, reset, time-out, refused connection), also when a
    retry hid it; of the failed `saved` were answered at a second attempt, and `common` failed again: they fail wherever they
    go. A second attempt that was shed, given up or late tells neither. `shed` were refused, because too many were in flight, by the
    gateway or by a server whose queue was full: an outcome of its own, whether or not stable answered in the candidate's place.
    Undecided is the rest: given up by their caller before any attempt failed, never sent anywhere, or answered by another release
    because this one's servers were set aside.

    `refused` are requests that ended as their caller's mistake, by the words of a release's server. They are in no other count.

    Where the model has classes of requests, `by_class` tells how many of the decided were of each but the default one.

    What its servers did: `timed` first attempts that ended, answered or failed, and `latency_us` maps an upper bucket edge in µs to
    how many of them took less. `answered` are those of them that did not fail, and `answered_us` has their latencies. `aborted` first
    attempts were given up by their callers, so many of them within each edge of `aborted_us`: an answer would have taken longer.
    Of these, `given_up` had no answer that had begun.

    `streams` holds the measures of streams whose events the gateway read, by name (`FIRST_TEXT`, `LARGEST_GAP`: µs; `texts`: events with
    text of whole streams). A stream that was shed is in none of them. If its caller left, it has the values so far.
    """

    routed: int = 0
    decided: int = 0
    failed: int = 0
    saved: int = 0
    common: int = 0
    shed: int = 0
    timed: int = 0
    latency_us: dict[int, int] = field(default_factory=dict)
    size_bytes: dict[int, int] = field(default_factory=dict)
    by_class: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    answered_us: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    aborted: int = 0
    aborted_us: dict[int, int] = field(default_factory=dict)
    given_up: int = 0
    streams: Mapping[str, Spread] = field(default_factory=dict)

    def spread(self, measure: str) -> Spread:
        if measure == WHOLE:
            return Spread(self.timed, self.latency_us, self.aborted, self.aborted_us)
        return self.streams.get(measure, Spread())


@dataclass(frozen=True)
class TenantCounters:
    """The requests of one tenant, or of one class, to a model at one gateway, as they ended. Refused because the tenant's quota was used
    up: `over_quota`; because a release was full: `shed`. `errors` are what else failed through no fault of the caller; all others are
    `answered`, so many of them within each edge of `latency_us` (µs, cumulative; as the caller waited, retries included).
    """

    requests: int = 0
    over_quota: int = 0
    shed: int = 0
    errors: int = 0
    latency_us: Mapping[int, int] = field(default_factory=dict, compare=False)

    @property
    def answered(self) -> int:
        return self.requests - self.over_quota - self.shed - self.errors

    def __add__(self, other: TenantCounters) -> TenantCounters:
        latency_us = dict(self.latency_us)
        for edge, count in other.latency_us.items():
            latency_us[edge] = latency_us.get(edge, 0) + count
        return TenantCounters(
            self.requests + other.requests,
            self.over_quota + other.over_quota,
            self.shed + other.shed,
            self.errors + other.errors,
            latency_us,
        )

    def since(self, before: TenantCounters) -> tuple[int, int, int, int]:
        """(requests, over_quota, shed, errors) since an earlier reading of the same counts."""
        return (
            self.requests - before.requests,
            self.over_quota - before.over_quota,
            self.shed - before.shed,
            self.errors - before.errors,
        )


@dataclass(frozen=True)
class GatewayCounters:
    """One reading of one gateway for one model. `epoch` changes when the gateway restarted and its counts began anew.

    `read_at` is when the counts were true: it stays where it was while a gateway repeats itself. `by_slot` has the same counts
    apart by the weight under which a request began, which its route's slot names. In none of them is what `forced` a release, found the
    model `asleep` and was answered by the gateway, or asked one of its `questions`: is it ready, what are its inputs.
    """

    gateway: str
    epoch: str
    read_at: datetime
    by_release: dict[str, ArmCounters]  # keyed by release digest "sha256:…"
    user_requests: int = 0
    user_errors: int = 0  # what users saw, after retries
    by_slot: dict[int, dict[str, ArmCounters]] = field(default_factory=dict)
    by_tenant: dict[str, TenantCounters] = field(default_factory=dict)  # of a model whose traffic policy names tenants
    by_class: dict[str, TenantCounters] = field(default_factory=dict)  # likewise, of one that names classes of requests
    forced: int = 0
    asleep: int = 0
    user_shed: int = 0  # of `user_errors`, those that were refused because too many were in flight
    questions: int = 0
    forced_now: int = 0  # under way; `forced` are those that ended


class TrafficCounters(Protocol):
    """Reads what gateways counted."""

    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        """All that one gateway counted, in one go, by model: each of `models`, or every model that it counted (None).

        One thread per gateway may call it. Raises GatewayError.
        """
        ...


@dataclass(frozen=True)
class HostCounts:
    """What one server of a release was asked since the gateway last met a change of that release's servers; `active` now, streams too.
    `attempts` that ended, first and later ones; `failed` are those without a good answer: server errors, cuts, and those that were given
    up, by the gateway or by who asked; `unreached` are those of them for which no connection could be made, so that nothing was sent: as
    many at least. What the gateway shed is in none of these, as no server was asked.
    """

    attempts: int = 0
    failed: int = 0
    active: int = 0
    unreached: int = 0

    def __add__(self, other: HostCounts) -> HostCounts:
        return HostCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


class HostCounters(Protocol):
    """Reads what a gateway counted of each server. Dearer than `TrafficCounters`: for when there is a suspicion."""

    def read_hosts(
        self, *, gateway: str, admin_url: str, timeout_s: float, model: str, digest: str
    ) -> dict[tuple[str, int], HostCounts]:
        """By host and port, of either protocol; only those that were asked at all. Raises GatewayError. Safe from several threads."""
        ...


class MetricsError(PortError):
    """Why one query gave no counter.

    `unreachable` · `timeout` · `refused`: 4xx, with the other side's own words · `server_error`: 5xx · `malformed`: no answer
    of a metrics server, or none that is a number · `no_data`: nothing matches · `many_series` · `not_a_number`: NaN or ±Inf ·
    `negative` · `stale`: the newest sample is too old.
    """

    REASONS = frozenset(
        {
            "unreachable",
            "timeout",
            "refused",
            "server_error",
            "malformed",
            "no_data",
            "many_series",
            "not_a_number",
            "negative",
            "stale",
        }
    )


@dataclass(frozen=True)
class CounterQuery:
    """A query whose answer is one cumulative counter. `name` is the asker's own."""

    name: str
    query: str


@dataclass(frozen=True)
class CounterSample:
    """What a counter had reached, `age_s` seconds before it was asked for (the other side's clock measures that).

    `series` names the counters that it is made of, `resets` how many of them began anew in the last minutes: two samples
    can be compared where no series vanished, none came back, and none began anew in between.
    """

    value: float
    age_s: float
    series: frozenset[str] = frozenset()
    resets: float = 0.0


class ExternalMetrics(Protocol):
    """Reads counters of external systems: business metrics, or the users' own monitoring."""

    def read(self, queries: Sequence[CounterQuery], *, timeout_s: float) -> Mapping[str, CounterSample | MetricsError]:
        """Every query's answer by its name, all of one instant. `timeout_s` is for all of it together. Never raises."""
        ...


class CounterHistory(Protocol):
    """Reads the same counters at instants of the past."""

    def history(
        self, queries: Sequence[CounterQuery], *, since: int, step_s: int, timeout_s: float
    ) -> Sequence[tuple[float, Mapping[str, CounterSample | MetricsError]]]:
        """The answers at `since` (seconds since 1970) and each `step_s` later, until now by the other side's clock. `timeout_s` is for
        all of it together. Raises MetricsError."""
        ...
