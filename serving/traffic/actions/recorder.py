"""Keeps the gateways' counts by minute. Another part reads the gateways."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

import structlog
from django.db import DatabaseError, connection

from ledger.actions import enqueue
from ledger.actions.leadership import Leadership
from serving.models import Gateway, TrafficSeries
from serving.ports import ArmCounters, GatewayCounters, TenantCounters
from serving.traffic.actions.keeping import KEEP
from serving.traffic.actions.partitions import make_partitions
from serving.traffic.core.buckets import EDGES_US, TENANT_EDGES_US

log = structlog.get_logger(__name__)
Counts = dict[str, int]
#: Half of the usual time (s) between two readings: the counts between them belong to the minute of their middle.
HALF_S: Final = 5.0
#: Minutes that wait for a database that is away.
MOST_WAITING: Final = 30
_WRITE = """
INSERT INTO serving_seriesminute (series_id, at, fence, known_s, counts)
SELECT series, %s, %s, known_s, counts::int[] FROM unnest(%s::int[], %s::float[], %s::text[]) AS row(series, known_s, counts)
ON CONFLICT (series_id, at, fence) DO UPDATE SET known_s = EXCLUDED.known_s, counts = EXCLUDED.counts
"""


class Key(NamedTuple):
    environment: int
    model: int
    release: str = ""  # digest
    tenant: str = ""


@dataclass
class _Sum:
    known_s: float = 0.0
    counts: Counts = field(default_factory=dict)

    def add(self, known_s: float, more: Counts) -> None:
        self.known_s += known_s
        for name, count in more.items():
            self.counts[name] = self.counts.get(name, 0) + count


@dataclass(frozen=True)
class _Reading:
    """The newest of one gateway. `counts` by (model, release, tenant)."""

    epoch: str
    at: float
    counts: Mapping[tuple[str, str, str], Counts]


class Recorder:
    """Sums the differences between readings and writes each minute that has ended, under the leader's fence.

    An interval in which a gateway began anew, or a counter fell, is not counted: its seconds are unknown. One in which a
    gateway was not read is counted when the gateway is read again. Of several gateways each makes its share of a second
    known. The series of the whole model has a row for each minute, also without requests; the others do not.
    """

    def __init__(self, lead: Leadership) -> None:
        self.lead = lead
        self.forget()

    def forget(self) -> None:
        """Another process leads: the next reading is a first one."""
        self._readings: dict[str, _Reading] = {}
        self._sums: dict[Key, _Sum] = {}
        self._waiting: dict[int, dict[Key, _Sum]] = {}
        self._ids: dict[tuple[Key, tuple[str, ...]], int] = {}
        self._minute = self._parted = 0

    def keep(
        self,
        routes: Iterable[tuple[int, int, str]],
        gateways: Mapping[int, Sequence[Gateway]],
        pages: Mapping[str, Mapping[str, GatewayCounters]],
        at: float,
    ) -> None:
        """As `take`, of routes as (environment, model, slug). If the database fails, it logs that, and the minutes wait."""
        routed: dict[int, dict[str, int]] = {}
        for environment, model, slug in routes:
            routed.setdefault(environment, {})[slug] = model
        try:
            self.take(routed, gateways, pages, at)
        except DatabaseError:
            log.warning("series_not_kept", traceback=traceback.format_exc())

    def take(
        self,
        routed: Mapping[int, Mapping[str, int]],
        gateways: Mapping[int, Sequence[Gateway]],
        pages: Mapping[str, Mapping[str, GatewayCounters]],
        at: float,
    ) -> None:
        """One reading of all gateways at `at` (seconds since the epoch). `routed`: keys of models by slug, by environment.

        Raises LeadershipLost and errors of the database. The minutes then wait for the next call.
        """
        minute = int((at - HALF_S) // 60)
        if minute != self._minute and self._minute:
            self._waiting[self._minute] = self._sums
            self._sums = {}
        self._minute = minute
        for environment, models in routed.items():
            here = gateways.get(environment, ())
            for gateway in here:
                if gateway.name in pages:
                    self._read(environment, models, gateway.name, pages[gateway.name], at, len(here))
        for waiting in sorted(self._waiting)[:-MOST_WAITING]:
            del self._waiting[waiting]
        for waiting in sorted(self._waiting):
            self._write(waiting, self._waiting[waiting])
            del self._waiting[waiting]

    def _read(
        self,
        environment: int,
        models: Mapping[str, int],
        gateway: str,
        page: Mapping[str, GatewayCounters],
        at: float,
        gateways: int,
    ) -> None:
        some = next(iter(page.values()), None)
        now = _Reading(some.epoch if some else "", some.read_at.timestamp() if some else at, _counts(page))
        before = self._readings.get(gateway)
        self._readings[gateway] = now
        if before is None or now.at <= before.at or (before.counts and now.epoch != before.epoch):
            return
        known_s = (now.at - before.at) / gateways
        news: dict[str, dict[Key, Counts]] = {
            slug: {Key(environment, model): dict.fromkeys(_MODEL, 0)} for slug, model in models.items()
        }
        fallen = set()
        for (slug, release, tenant), counts in now.counts.items():
            if slug in models:
                old = before.counts.get((slug, release, tenant), {})
                more = {name: count - old.get(name, 0) for name, count in counts.items()}
                news[slug][Key(environment, models[slug], release, tenant)] = more
                if min(more.values()) < 0:
                    fallen.add(slug)
        for slug in news.keys() - fallen:
            for key, more in news[slug].items():
                if any(more.values()) or not (key.release or key.tenant):
                    self._sums.setdefault(key, _Sum()).add(known_s, more)

    def _write(self, minute: int, sums: Mapping[Key, _Sum]) -> None:
        if not sums:
            return
        at = datetime.fromtimestamp(minute * 60, UTC)
        with self.lead.locked():
            if self._parted != minute // 60:
                make_partitions(at, at)
                enqueue(kind=KEEP, key="all", args={}, due_at=at)
                self._parted = minute // 60
            ids = self._series({(key, tuple(one.counts)) for key, one in sums.items()})
            rows = [
                (ids[key, tuple(one.counts)], one.known_s, f"{{{','.join(map(str, one.counts.values()))}}}")
                for key, one in sums.items()
            ]
            with connection.cursor() as cursor:
                cursor.execute(_WRITE, [at, self.lead.fence, *map(list, zip(*rows, strict=True))])

    def _series(self, asked: set[tuple[Key, tuple[str, ...]]]) -> Mapping[tuple[Key, tuple[str, ...]], int]:
        missing = asked - self._ids.keys()
        if missing:
            rows = [
                TrafficSeries(
                    environment_id=key.environment, model_id=key.model, release=key.release, tenant=key.tenant,
                    names=list(names),
                )
                for key, names in missing
            ]  # fmt: skip
            TrafficSeries.objects.bulk_create(rows, ignore_conflicts=True)
            known = TrafficSeries.objects.filter(model__in={key.model for key, _ in missing}, replica="")
            for one in known:
                self._ids[Key(one.environment_id, one.model_id, one.release, one.tenant), tuple(one.names)] = one.pk
        return self._ids


def _counts(page: Mapping[str, GatewayCounters]) -> dict[tuple[str, str, str], Counts]:
    found = {}
    for model, one in page.items():
        found[model, "", ""] = dict(
            zip(_MODEL, (one.user_requests, one.user_errors, one.user_shed, one.forced, one.asleep), strict=True)
        )
        found |= {(model, digest, ""): _of_release(arm) for digest, arm in one.by_release.items()}
        found |= {(model, "", tenant): _of_tenant(each) for tenant, each in one.by_tenant.items()}
    return found


_MODEL: Final = ("requests", "errors", "shed", "forced", "asleep")
_RELEASE: Final = (
    "routed", "decided", "failed", "saved", "common", "shed", "refused", "aborted", "given_up", "timed"
)  # fmt: skip
_TENANT: Final = ("requests", "over_quota", "shed", "errors")


def _of_release(arm: ArmCounters) -> Counts:
    return {name: getattr(arm, name) for name in _RELEASE} | _classes(arm.latency_us, EDGES_US, arm.timed)


def _of_tenant(one: TenantCounters) -> Counts:
    return {name: getattr(one, name) for name in _TENANT} | _classes(one.latency_us, TENANT_EDGES_US, one.answered)


def _classes(under: Mapping[int, int], edges: Sequence[int], total: int) -> Counts:
    """Counts between edges, by the upper one in µs."""
    found, before = {}, 0
    for edge in edges:
        now = under.get(edge, before)
        found[f"us_{edge}"] = now - before
        before = now
    return {**found, "us_more": total - before}
