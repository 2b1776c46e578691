"""Which tenants and classes of a model were served and which were shed, and whether their policy promises more than is there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from registry.core.traffic import OTHERS, quotas_per_s, shares_pct
from registry.models import ServedModel
from rollouts.core.recent_traffic import quantile
from rollouts.core.tenant_traffic import TenantMinute, TenantTraffic
from rollouts.models import TrafficRecord
from serving.models import Environment
from serving.traffic.queries.endpoints import ReleaseStanding, standing_of
from serving.traffic.queries.routes import route_of
from validators.queries.capacity import proven_per_s

#: Rates are averages over the minutes with requests among so many whole ones.
MINUTES = 5


@dataclass(frozen=True)
class TenantRow:
    """One tenant, in requests a second; `quota_per_s` is None for one that the policy names no longer.

    `p50_ms` and `p99_ms`: no slower were half, and 99 in 100, of its answers, as it waited for them (the upper edge of the class); None
    without answers, and above the last edge.
    """

    tenant: str
    quota_per_s: float | None
    requests_per_s: float
    over_quota_per_s: float
    shed_per_s: float
    errors_per_s: float
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True)
class ClassRow:
    """One class of requests; `share_pct` of what may be in flight on a release, None for one that the policy names no longer. The rest as
    `TenantRow` has it."""

    name: str
    is_default: bool
    share_pct: int | None
    requests_per_s: float
    shed_per_s: float
    errors_per_s: float
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True)
class QuotaWarning:
    """Something to know of a policy that is kept all the same."""

    code: str
    message: str


@dataclass(frozen=True)
class TenantsSeen:
    """`minutes`: the rates are averages over so many, 0 without requests. `counted_at`: the last reading of the gateways; None before."""

    environment: str
    minutes: int
    counted_at: datetime | None
    tenants: list[TenantRow]
    classes: list[ClassRow]
    warnings: list[QuotaWarning]


def tenants_view(model: ServedModel, environment: Environment) -> TenantsSeen:
    """Named tenants first, then everybody else, then names of before; classes by their shares."""
    stated = model.traffic_policy.get("tenants") or {}
    quotas = {name: float(one["requests_per_s"]) for name, one in sorted(stated.get("named", {}).items())}
    if stated:
        quotas[OTHERS] = float(stated["others"]["requests_per_s"])
    record = TrafficRecord.objects.filter(model=model, environment=environment).first()
    now = timezone.now().timestamp()
    tenants = TenantTraffic.from_json(record.tenants if record else {})
    of_classes = TenantTraffic.from_json(record.classes if record else {})
    minutes = len(tenants.minutes(now, MINUTES) | of_classes.minutes(now, MINUTES))
    found = tenants.since(now, MINUTES)
    rows = [
        _row(name, quotas.get(name), found.get(name), minutes)
        for name in (*quotas, *(one for one in sorted(found) if one not in quotas))
    ]
    counted_at = record.at if record else None
    classes = _classes(model, of_classes.since(now, MINUTES), minutes)
    return TenantsSeen(environment.slug, minutes, counted_at, rows, classes, _warnings(model, environment))


def _classes(model: ServedModel, counted: dict[str, TenantMinute], minutes: int) -> list[ClassRow]:
    stated = model.traffic_policy.get("classes") or {}
    shares = {name: int(one["share_pct"]) for name, one in stated.get("named", {}).items()}
    names = sorted(shares, key=lambda name: (-shares[name], name))
    rows = []
    for name in (*names, *(one for one in sorted(counted) if one not in shares)):
        one = _row(name, None, counted.get(name), minutes)
        rates = one.requests_per_s, one.shed_per_s, one.errors_per_s
        rows.append(ClassRow(name, name == stated.get("default"), shares.get(name), *rates, one.p50_ms, one.p99_ms))
    return rows


def _row(name: str, quota: float | None, counted: TenantMinute | None, minutes: int) -> TenantRow:
    _, *counts, took = counted or TenantMinute(0)
    edges = (quantile(took, 0.5), quantile(took, 0.99))
    p50_ms, p99_ms = (None if edge is None else edge / 1000 for edge in edges)
    requests, over_quota, shed, errors = (round(one / (60 * max(1, minutes)), 3) for one in counts)
    return TenantRow(name, quota, requests, over_quota, shed, errors, p50_ms, p99_ms)


def _warnings(model: ServedModel, environment: Environment) -> list[QuotaWarning]:
    return [*_of_quotas(model, environment), *_of_shares(model)]


def _of_shares(model: ServedModel) -> list[QuotaWarning]:
    total = shares_pct(model.traffic_policy)
    if total is None or total <= 100:
        return []
    message = (
        f"The shares of the classes add up to {total} % of the in-flight bound. While all classes are full, servers have "
        f"{total / 100:g} times their bound of requests, and answers slow down by the same factor."
    )
    return [QuotaWarning("classes_exceed_bound", message)]


def _of_quotas(model: ServedModel, environment: Environment) -> list[QuotaWarning]:
    """Quotas are fair only if their sum is at most the capacity: a tenant with a larger quota takes the others' share."""
    promised = quotas_per_s(model.traffic_policy)
    route = route_of(model, environment)
    if promised is None or route is None:
        return []
    proven = proven_per_s(route.stable)
    servers = standing_of([str(route.stable_id)]).get((environment.pk, str(route.stable_id)), ReleaseStanding()).count
    if proven is None or not servers or promised <= proven * servers:
        return []
    message = (
        f"The quotas add up to {promised:g} requests a second, and the {servers} servers of {route.stable.name} in "
        f"{environment.slug} are proven for {proven * servers:g}. Quotas keep tenants apart only while all of them can be kept at "
        "once: lower them, or bring more servers."
    )
    return [QuotaWarning("quotas_exceed_capacity", message)]
