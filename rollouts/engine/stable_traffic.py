"""Counts the traffic of every routed model, beside the engine's ticks.

A preview reads the rate of requests and stable's share of errors; pages draw the last hour.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.db import close_old_connections, connection
from django.utils import timezone

from ledger.actions.leadership import Leadership, LeadershipLost
from rollouts.core.counter_deltas import ERRORS, Counts, Reading, difference
from rollouts.core.latency import NOTHING, Classes, added, classes_of, since
from rollouts.core.recent_traffic import RATE_MEMORY_S, RecentTraffic
from rollouts.core.tenant_traffic import TenantMinute, TenantTraffic
from rollouts.models import TrafficRecord as Row
from serving.models import Gateway
from serving.ports import ArmCounters, GatewayCounters, GatewayError, TenantCounters, TrafficCounters
from serving.targets.queries import gateways_in
from serving.traffic.queries.routes import all_routes

log = structlog.get_logger(__name__)
#: Number of models that are watched at a time; the others take their turn after TURN_S.
AT_ONCE = 100
TURN_S = 600.0
#: Seconds between two reads of the routes, and between two writes of the counts. Pages take counts for present ones for twice as long
#: (`rollouts.core.recent_traffic.NOW_WITHIN_S`).
ROUTES_EVERY_S, WRITE_EVERY_S = 10.0, 5.0
#: The traffic of a model whose requests fail, or whose gateways cannot be read, is written this often: pages show it at once.
WRITE_TROUBLE_EVERY_S = 3.0
READ_TIMEOUT_S = 1.0

_ByName = dict[str, TenantCounters]


@dataclass
class _WatchedModel:
    """One model in one environment. `readings` are the last ones, by gateway."""

    environment_id: int
    model_id: int
    model: str
    stable: str  # digest
    rate_per_s: float | None = None
    error_frac: float | None = None
    readings: dict[str, Reading] = field(default_factory=dict)
    is_first: bool = True  # the first reading has nothing to be compared with
    traffic: RecentTraffic = field(default_factory=RecentTraffic)
    latencies: dict[str, tuple[str, Classes]] = field(default_factory=dict)  # stable's at the last reading, by gateway
    shed: dict[str, tuple[str, int]] = field(default_factory=dict)  # (epoch, count) at the last reading, by gateway
    tenants: TenantTraffic = field(default_factory=TenantTraffic)
    classes: TenantTraffic = field(default_factory=TenantTraffic)
    callers: dict[str, tuple[str, _ByName, _ByName]] = field(
        default_factory=dict
    )  # the same, of tenants and of classes

    counted_at: float = float("-inf")  # when it was last counted and last written, in monotonic seconds
    written_at: float = float("-inf")

    @property
    def key(self) -> tuple[int, int]:
        return self.environment_id, self.model_id

    def is_in_trouble(self, now: float) -> bool:
        """Whether a user's request failed within the last seconds that are kept apart, or its gateways were not read lately."""
        is_unread = now - self.counted_at >= WRITE_TROUBLE_EVERY_S
        return is_unread or any(one.errors or one.shed for one in self.traffic.spans)

    def take(self, gateway: str, counters: GatewayCounters) -> Reading:
        """A gateway's counts since its last reading: of stable, and of all users. A shed request is no error."""
        arm = counters.by_release.get(self.stable, ArmCounters())
        counts = Counts(arm.decided, arm.routed, {ERRORS: arm.failed})
        at = counters.read_at.timestamp()
        now = Reading(
            counters.epoch, at, Counts(), counts, counters.user_requests, counters.user_errors - counters.user_shed
        )
        news = difference(self.readings.get(gateway), now)
        self.readings[gateway] = now
        return news

    def take_latency(self, gateway: str, counters: GatewayCounters) -> Classes:
        """How fast stable answered at one gateway since it was last read. A failed attempt, such as a 503, is no answer."""
        arm = counters.by_release.get(self.stable, ArmCounters())
        now, (epoch, before) = classes_of(arm.answered_us, arm.answered), self.latencies.get(gateway, ("", None))
        self.latencies[gateway] = counters.epoch, now
        if before is None:
            return NOTHING
        return since(before, now) if epoch == counters.epoch else now

    def take_shed(self, gateway: str, counters: GatewayCounters) -> int:
        """How many requests were shed at one gateway since it was last read."""
        epoch, before = self.shed.get(gateway, ("", counters.user_shed))
        self.shed[gateway] = counters.epoch, counters.user_shed
        return max(0, counters.user_shed - before) if epoch in ("", counters.epoch) else counters.user_shed

    def take_callers(self, gateway: str, counters: GatewayCounters) -> None:
        """What each tenant, and each class, sent to one gateway since it was last read; all that it counted, if it began anew."""
        epoch, *before = self.callers.get(gateway, ("", {}, {}))
        self.callers[gateway] = counters.epoch, counters.by_tenant, counters.by_class
        if not epoch:
            return
        tenants, classes = before if epoch == counters.epoch else ({}, {})
        at = counters.read_at.timestamp()
        self.tenants = self.tenants.after(at, _news(tenants, counters.by_tenant))
        self.classes = self.classes.after(at, _news(classes, counters.by_class))

    def counted(self, at: float, news: list[Reading], latency: Classes, elapsed_s: float, shed: int = 0) -> None:
        """Takes one second in."""
        stable = Counts()
        for one in news:
            stable = stable + one.stable
        if stable.attempts:
            share = stable.bad.get(ERRORS, 0) / stable.attempts
            known = share if self.error_frac is None else self.error_frac
            self.error_frac = known + (share - known) / RATE_MEMORY_S
        if self.is_first:
            self.is_first = False
            self.traffic = self.traffic.after(at, 0, 0, NOTHING)  # a baseline: earlier requests are not counted
            return
        requests = sum(one.user_requests for one in news)
        self.traffic = self.traffic.after(at, requests, sum(one.user_errors for one in news), latency, shed)
        rate = requests / elapsed_s
        weight = 1 - math.exp(-elapsed_s / RATE_MEMORY_S)
        self.rate_per_s = rate if self.rate_per_s is None else self.rate_per_s + weight * (rate - self.rate_per_s)

    def to_json(self) -> dict[str, Any]:
        rate = None if self.rate_per_s is None else round(self.rate_per_s, 3)
        errors = None if self.error_frac is None else round(self.error_frac, 6)
        return {"rate_per_s": rate, "error_frac": errors}


def _news(before: _ByName, now: _ByName) -> dict[str, TenantMinute]:
    return {name: _more(before.get(name, TenantCounters()), one) for name, one in now.items()}


def _more(before: TenantCounters, now: TenantCounters) -> TenantMinute:
    """Requests of a tenant, or a class, between two readings of a gateway."""
    took = since(classes_of(before.latency_us, before.answered), classes_of(now.latency_us, now.answered))
    return TenantMinute(0, *now.since(before), took)


class StableTraffic:
    """Runs in a thread of its own, so that it never delays a tick. It writes under the engine's `lead`."""

    def __init__(self, counters: TrafficCounters, lead: Leadership, *, tick_s: float = 1.0) -> None:
        self.counters, self.lead, self.tick_s = counters, lead, tick_s
        self._watched: dict[tuple[int, int], _WatchedModel] = {}
        self._gateways: dict[int, list[Gateway]] = {}
        self._looked_at = self._written_at = self._read_at = 0.0

    def run(self, stopping: threading.Event) -> None:
        """Until `stopping` is set."""
        while not stopping.wait(self.tick_s):
            try:
                if self.lead.holds():
                    self.turn(time.monotonic())
                else:
                    self._watched.clear()
            except LeadershipLost:
                self._watched.clear()
            except Exception:  # nothing of this may end the engine
                log.warning("stable_traffic_failed", traceback=traceback.format_exc())
                self._watched.clear()
                close_old_connections()
        connection.close()

    def turn(self, now: float) -> None:
        """One reading of every gateway for the models that are watched. `now` in monotonic seconds."""
        if not self._watched or now - self._looked_at >= ROUTES_EVERY_S:
            self._looked_at = now
            self._look(now)
        elapsed_s, self._read_at = max(0.001, now - self._read_at) if self._read_at else self.tick_s, now
        is_due = now - self._written_at >= WRITE_EVERY_S
        self._written_at = now if is_due else self._written_at
        for environment_id, gateways in self._gateways.items():
            here = [one for one in self._watched.values() if one.environment_id == environment_id]
            self._read(gateways, here, elapsed_s)
            for one in here:  # at once: gateways of other environments may take READ_TIMEOUT_S each
                if is_due or (one.is_in_trouble(now) and now - one.written_at >= WRITE_TROUBLE_EVERY_S):
                    one.written_at = now
                    self._write(one)

    def _look(self, now: float) -> None:
        """The models to watch now: all if they are few, else the share whose turn it is."""
        routes = list(all_routes())
        if len(routes) > AT_ONCE:
            start = int(now // TURN_S) * AT_ONCE % len(routes)
            routes = (routes + routes)[start : start + AT_ONCE]
        kept, self._watched = self._watched, {}
        rows = {(row.environment_id, row.model_id): row for row in Row.objects.all()} if routes else {}
        for route in routes:
            key = (route.environment_id, route.model_id)
            one = kept.get(key)
            if one is None or one.stable != route.stable.digest:
                state = rows[key].state if key in rows else {}
                counted = (state.get("rate_per_s"), state.get("error_frac"))
                one = _WatchedModel(*key, route.model.slug, str(route.stable.digest), *counted)
                if key in rows:
                    one.traffic = RecentTraffic.from_json(rows[key].traffic)
                    one.tenants = TenantTraffic.from_json(rows[key].tenants)
            self._watched[key] = one
        self._gateways = gateways_in({route.environment_id for route in routes})

    def _read(self, gateways: list[Gateway], watched: list[_WatchedModel], elapsed_s: float) -> None:
        news: dict[tuple[int, int], list[Reading]] = {one.key: [] for one in watched}
        latency, shed = dict.fromkeys(news, NOTHING), dict.fromkeys(news, 0)
        models = [one.model for one in watched]
        for gateway in gateways:
            try:
                pages = self.counters.read(
                    gateway=gateway.name, admin_url=gateway.admin_url, timeout_s=READ_TIMEOUT_S, models=models
                )
            except GatewayError:
                return  # counts of some gateways alone would look like less traffic
            for one in watched:
                if one.model in pages:
                    news[one.key].append(one.take(gateway.name, pages[one.model]))
                    latency[one.key] = added(latency[one.key], one.take_latency(gateway.name, pages[one.model]))
                    shed[one.key] += one.take_shed(gateway.name, pages[one.model])
                    one.take_callers(gateway.name, pages[one.model])
        for one in watched:
            if news[one.key]:
                at = max(part.at for part in news[one.key])
                one.counted(at, news[one.key], latency[one.key], elapsed_s, shed[one.key])
                one.counted_at = self._read_at

    def _write(self, one: _WatchedModel) -> None:
        with self.lead.locked():
            Row.objects.update_or_create(
                environment_id=one.environment_id,
                model_id=one.model_id,
                defaults={
                    "state": one.to_json(),
                    "traffic": one.traffic.to_json(),
                    "tenants": one.tenants.to_json(),
                    "classes": one.classes.to_json(),
                    "at": timezone.now(),
                },
            )
