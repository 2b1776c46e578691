"""The explanation of a model's traffic in an environment, from what the engine keeps: an hour with tenants and classes, or two weeks
of kept series."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
from django.db.models import Q

from accounts.core.instants import EXAMPLES, read_instant
from insights.core.diagnosis.report import Diagnosis, diagnose, sentence
from insights.core.diagnosis.series import Array, Change, Counts, Window
from insights.core.diagnosis.shift import Shape
from insights.core.diagnosis.split import LOOK_BACK_S
from ledger.core.errors import Invalid
from ledger.queries.events import events
from registry.models import ServedModel
from registry.queries import names_by_digest
from rollouts.core.latency import EDGES_US
from rollouts.core.recent_traffic import MINUTES, RecentTraffic
from rollouts.core.tenant_traffic import TenantTraffic
from rollouts.queries.traffic import kept_traffic
from serving.models import Environment
from serving.traffic.queries.endpoints import standing_at
from serving.traffic.queries.routes import route_of
from serving.traffic.queries.series import minutes_of
from validators.queries.capacity import proven_per_s

MOST_EVENTS: Final = 200
#: Two weeks. Of a longer time its end is read.
MOST_MINUTES: Final = 14 * 24 * 60
#: What no part of the product stores yet.
NO_SOURCE: Final = (
    "counts by replica, node and request size",
    "times of the stages: queue, batch wait, compute, outside",
    "CPU, memory, disk and GPU of the nodes",
)
#: Subjects whose events follow a problem and cause none.
_EFFECTS: Final = ("alarm", "incident", "webhook", "session", "token")


@dataclass(frozen=True)
class Explanation:
    """`since`, `low` and `high`: the shift and its interval; None without one."""

    model: str
    environment: str
    from_at: datetime
    to_at: datetime
    verdict: str
    answer: str
    since: datetime | None
    low: datetime | None
    high: datetime | None
    found: Diagnosis


def explain(
    model: ServedModel, environment: Environment, now: datetime, since: str = "", baseline: str = ""
) -> Explanation:
    """Explains the time since `since` (an instant, or `1h`), read together with `baseline` (as `since`, before it).

    Raises Invalid("not_an_instant").
    """
    begin = _instant("since", since or "1h", now)
    begin = min(now, _instant("baseline", baseline, begin) if baseline else begin)
    last = int(now.timestamp() // 60)
    asked = max(0, last - int(begin.timestamp() // 60))
    window = _read(model, environment, last, min(asked, MOST_MINUTES))
    changes, capacity_per_s = _changes(model, environment, window.begin_s), _capacity(model, environment)
    window = replace(window, changes=changes, capacity_per_s=capacity_per_s)
    found = diagnose(window)
    is_shift = found.shift.shape in (Shape.STEP, Shape.RISING)

    def at(minute: float) -> datetime | None:
        return datetime.fromtimestamp(window.begin_s + 60 * minute, UTC) if is_shift else None

    return Explanation(
        model.slug, environment.slug, datetime.fromtimestamp(window.begin_s, UTC), datetime.fromtimestamp(60 * last, UTC),
        found.shift.shape.value, sentence(found, window.begin_s), at(found.shift.at), at(found.shift.low), at(found.shift.high), found,
    )  # fmt: skip


def _instant(field: str, text: str, now: datetime) -> datetime:
    try:
        return read_instant(text, now) or now
    except (ValueError, OverflowError):
        raise Invalid("not_an_instant", f"{text[:40]!r} is no instant. Write {EXAMPLES}.", field=field) from None


def _read(model: ServedModel, environment: Environment, last: int, minutes: int) -> Window:
    """The last hour by tenant and class if the model has them, else kept series. Without kept series, the hour alone."""
    hour = _window(model, environment, last, minutes) if minutes <= MINUTES else None
    if hour is not None and hour.by:
        return hour
    kept = _kept_window(model, environment, last, minutes)
    return kept if hour is None or np.isfinite(kept.whole.total).any() else hour


def _kept_window(model: ServedModel, environment: Environment, last: int, minutes: int) -> Window:
    """More than an hour, from kept series."""
    since, until = (datetime.fromtimestamp(60 * at, UTC) for at in (last - minutes, last))
    kept = minutes_of(model, environment, since, until)
    users = kept.pop(("", ""), {})
    known = users.get("known", np.zeros(minutes)) > 0
    slow_names = _slow_names(model)

    def column(of: Mapping[str, Any], *names: str) -> Array:
        return np.where(known, sum((of[name] for name in names if name in of), np.zeros(minutes)), np.nan)

    def counts(of: Mapping[str, Any], total: str, errors: str, *refused: str) -> Counts:
        bad = {"errors": column(of, errors), "refused": column(of, *refused)}
        return Counts(column(of, total), {**bad, "slow": column(of, *slow_names)} if slow_names else bad)

    names = names_by_digest(model, [release for release, _ in kept if release])
    releases = {
        names.get(release, release): counts(of, "decided", "failed") for (release, _), of in kept.items() if release
    }
    tenants = {
        tenant: counts(of, "requests", "errors", "over_quota", "shed") for (_, tenant), of in kept.items() if tenant
    }
    bad = {"errors": column(users, "errors") - column(users, "shed"), "refused": column(users, "shed")}
    if slow_names and releases:
        bad["slow"] = np.sum([one.bad["slow"] for one in releases.values()], axis=0)
    missing = list(NO_SOURCE)
    if not tenants:
        missing.append("who sends them: the model has no tenants in its traffic policy")
    by = {name: values for name, values in (("release", releases), ("tenant", tenants)) if len(values) > 1}
    return Window(
        since.timestamp(), Counts(column(users, "requests"), bad), by, missing=tuple(missing)
    )  # fmt: skip


def _slow_names(model: ServedModel) -> list[str]:
    """Counters of requests that took longer than the model's objective allows; none without one."""
    edge = _edge(model)
    return [] if edge is None else [*(f"us_{one}" for one in EDGES_US[edge:]), "us_more"]


def _window(model: ServedModel, environment: Environment, last: int, minutes: int) -> Window:
    """The last hour at most, by the minutes that the overview shows."""
    first = last - minutes
    record = kept_traffic(model, environment)
    recent = {one.at: one for one in RecentTraffic.from_json(record.traffic if record else {}).minutes}
    rows = [recent.get(first + i) for i in range(minutes)]
    known = np.array([row is not None for row in rows], dtype=bool)

    def column(name: str) -> Array:
        return np.array([np.nan if (value := getattr(row, name, None)) is None else value for row in rows], dtype=float)

    edge = _edge(model)
    by = {
        name: _dimension(kept, first, known, edge)
        for name, kept in (("tenant", record.tenants), ("class", record.classes))
        if kept
    } if record else {}  # fmt: skip
    missing = list(NO_SOURCE)
    if by.get("tenant"):
        whole = _sum(list(by["tenant"].values()))
    else:
        missing.append("slow requests by minute, and who sends them: the model has no tenants in its traffic policy")
        bad = {"errors": column("errors"), "refused": column("shed")}
        whole = Counts(column("requests"), bad, p99_ms=column("p99_us") / 1000)
    return Window(
        60 * first, whole, {name: values for name, values in by.items() if len(values) > 1}, missing=tuple(missing)
    )  # fmt: skip


def _edge(model: ServedModel) -> int | None:
    """The class of latency above which a request is slow, by the model's objective; None without one."""
    threshold = (model.objectives.get("slow") or {}).get("threshold_ms")
    return None if threshold is None else bisect_left(EDGES_US, int(1000 * threshold)) + 1


def _dimension(kept: Mapping[str, Any], first: int, known: Any, edge: int | None) -> dict[str, Counts]:
    """Counts by value. A minute without an entry has no request if the model's counts have that minute."""
    found = {}
    for name, rows in TenantTraffic.from_json(kept).tenants.items():
        table = np.where(known, 0.0, np.nan) * np.ones((4, 1))
        for row in rows:
            if 0 <= (i := row.at - first) < len(known):
                slow = sum(row.took[edge:]) if edge is not None else 0
                table[:, i] = row.requests, row.errors, row.over_quota + row.shed, slow
        bad = {"errors": table[1], "refused": table[2]}
        found[name] = Counts(table[0], bad if edge is None else {**bad, "slow": table[3]})
    return found


def _sum(values: list[Counts]) -> Counts:
    bad = {name: np.sum([one.bad[name] for one in values], axis=0) for name in values[0].bad}
    return Counts(np.sum([one.total for one in values], axis=0), bad)


def _changes(model: ServedModel, environment: Environment, begin_s: float) -> tuple[Change, ...]:
    """Events of the model there, and of nodes, gateways and the environment; of the latter, the verb and the subject alone."""
    here = Q(facts__environment=environment.slug) | Q(facts__environment__isnull=True)
    around = Q(model=None, subject_type__in=("node", "gateway")) | Q(
        model=None, subject_type="environment", subject_id=environment.slug
    )
    since = datetime.fromtimestamp(begin_s, UTC) - timedelta(seconds=LOOK_BACK_S)
    rows = events().filter(Q(model=model.slug) & here | around, at__gte=since).exclude(subject_type__in=_EFFECTS)
    return tuple(
        Change(
            one.at.timestamp(), one.verb, f"{one.subject_type} {one.subject_id}", one.reason[:200] if one.model else ""
        )
        for one in rows.order_by("-seq")[:MOST_EVENTS]
    )


def _capacity(model: ServedModel, environment: Environment) -> float | None:
    route = route_of(model, environment)
    per_s = proven_per_s(route.stable) if route is not None else None
    standing = standing_at(route.stable_id, environment.pk) if route is not None and per_s is not None else None
    return per_s * standing.count if per_s is not None and standing is not None and standing.count else None
