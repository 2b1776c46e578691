"""State of Sluicegate's processes and their dependencies. Without information a part is unknown, never well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import DatabaseError

from audit.adapters.reachability import Answer, Latest, ask_all
from ledger.models import Lease
from ledger.queries import clock
from ledger.queries.leases import leases, queue_depth
from rollouts.queries.rollouts import tick_ages
from serving.environments.queries.inventory import nodes
from serving.traffic.queries.gateways import GatewayState, gateway_states

#: Engine and scheduler are expected in every installation; other leaders are shown if present.
_EXPECTED = ("engine", "scheduler")
#: A node's agent and a gateway speak every few seconds; after this long they are silent.
SILENT_AFTER = timedelta(seconds=30)
#: Time after which a due job counts as not picked up by a worker.
LATE_AFTER = timedelta(seconds=60)
_PRIVATE = "administrators see more"


#: Answers of external parts, from a moment ago.
outside = Latest(ask_all)


class Health(StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    SILENT = "silent"  # it was there, and has not been heard of for a while
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class PartStatus:
    """One process, or one dependency of the processes. `seen_at`: time of its last sign of life, if recorded.

    `is_private`: the detail names hosts, addresses, or an error as it is, which is for administrators.
    """

    group: str
    name: str
    health: Health
    detail: str
    seen_at: datetime | None = None
    is_private: bool = False


def process_status(answers: dict[str, Answer] | None = None) -> list[PartStatus]:
    """All parts. `answers`: of the external parts, by default from a moment ago. Raises nothing but what kills the request."""
    try:
        now = clock.now()
        found = [
            PartStatus("Rests on", "PostgreSQL", Health.HEALTHY, "answers", now),
            *_leaders(leases(), now),
            *_ticks(now),
            *_jobs(now),
            *_agents(now),
            *_gateways(gateway_states(), now),
        ]
    except DatabaseError as error:
        detail = f"{type(error).__name__}: {error}"[:300]
        found = [
            PartStatus("Rests on", "PostgreSQL", Health.UNHEALTHY, f"{detail}; all else is unknown", is_private=True)
        ]
    return [*found, *_outside(answers if answers is not None else outside())]


def readable_parts(parts: Iterable[PartStatus], *, is_admin: bool) -> list[PartStatus]:
    """The parts as this person reads them."""
    return [part if is_admin or not part.is_private else replace(part, detail=_PRIVATE) for part in parts]


def overall(parts: Iterable[PartStatus]) -> Health:
    """The worst known state: a part that is not well makes the whole unwell; an unknown part does not."""
    healths = {part.health for part in parts}
    if healths & {Health.UNHEALTHY, Health.SILENT}:
        return Health.UNHEALTHY
    return Health.HEALTHY if Health.HEALTHY in healths else Health.UNKNOWN


def _leaders(rows: list[Lease], now: datetime) -> Iterable[PartStatus]:
    for row in rows:
        if row.owner and row.expires_at is not None and row.expires_at > now:
            detail = f"{row.owner} leads, with fencing token {row.token}"
            yield PartStatus("Leaders", row.name, Health.HEALTHY, detail, is_private=True)
        elif row.expires_at is not None:
            yield PartStatus("Leaders", row.name, Health.SILENT, "no leader; start one", row.expires_at)
        else:
            yield PartStatus("Leaders", row.name, Health.UNKNOWN, "the lease was given back, and no leader followed")
    for name in sorted(set(_EXPECTED) - {row.name for row in rows}):
        yield PartStatus("Leaders", name, Health.UNKNOWN, "none has ever led here")


def _ticks(now: datetime) -> Iterable[PartStatus]:
    """The age of the last tick of the rollout that waits longest for one."""
    ages = tick_ages()
    if not ages:
        yield PartStatus("Leaders", "last tick", Health.UNKNOWN, "no rollout is under way, so that none is written")
        return
    pk, at = min(ages, key=lambda one: one[1] or datetime.min.replace(tzinfo=now.tzinfo))
    if at is None:
        yield PartStatus("Leaders", "last tick", Health.UNKNOWN, f"rollout {pk} has had none yet")
        return
    health = Health.SILENT if now - at > SILENT_AFTER else Health.HEALTHY
    yield PartStatus("Leaders", "last tick", health, f"of rollout {pk}, of {len(ages)} under way", at)


def _jobs(now: datetime) -> Iterable[PartStatus]:
    told = queue_depth(now)
    is_late = told.oldest_due_at is not None and now - told.oldest_due_at > LATE_AFTER
    detail = f"{told.due} due, {told.running} running, {told.lapsed} of them with a lease that ran out"
    health = Health.UNHEALTHY if is_late or told.lapsed else Health.HEALTHY
    yield PartStatus("Workers", "jobs", health, detail, told.last_finished_at)


def _agents(now: datetime) -> Iterable[PartStatus]:
    rows = list(nodes())
    for row in rows:
        yield PartStatus("Agents", row.name, *_heard(row.seen_at, now, "its agent"), row.seen_at)
    if not rows:
        yield PartStatus("Agents", "none", Health.UNKNOWN, "no node has ever registered")


def _gateways(rows: list[GatewayState], now: datetime) -> Iterable[PartStatus]:
    for row in rows:
        health, detail = _heard(row.gateway.seen_at, now, "it")
        if health is Health.HEALTHY and row.errors:
            health, detail = Health.UNHEALTHY, f"it refuses {row.errors} of {row.routes} routes"
        elif health is Health.HEALTHY:
            detail = f"{row.acknowledged} of {row.routes} routes of {row.gateway.environment.slug} acknowledged at their present generation"
        yield PartStatus("Gateways", row.gateway.name, health, detail, row.gateway.seen_at)
    if not rows:
        yield PartStatus("Gateways", "none", Health.UNKNOWN, "no gateway has ever registered")


def _heard(at: datetime | None, now: datetime, who: str) -> tuple[Health, str]:
    if at is None:
        return Health.UNKNOWN, f"{who} was never heard of"
    if now - at > SILENT_AFTER:
        return Health.SILENT, f"{who} was not heard of for a while"
    return Health.HEALTHY, f"{who} speaks"


def _outside(answers: dict[str, Answer]) -> Iterable[PartStatus]:
    names = {
        "broker": ("Rests on", "Broker"),
        "workers": ("Workers", "Celery"),
        "store": ("Rests on", "Blob store"),
        "prometheus": ("Rests on", "Prometheus"),
    }
    for key, answer in answers.items():
        group, name = names.get(key, ("Rests on", key))
        health = Health.UNKNOWN if answer.is_well is None else Health.HEALTHY if answer.is_well else Health.UNHEALTHY
        yield PartStatus(group, name, health, answer.detail, is_private=True)
