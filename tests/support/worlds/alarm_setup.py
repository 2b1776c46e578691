"""Alarms and counts of the watch, without a watch."""

from __future__ import annotations

from typing import Any

from insights.actions.incidents import open_for_alarms
from insights.models import Incident
from ledger.queries import clock
from registry.models import ServedModel
from rollouts.actions.alarms import open_alarm
from rollouts.core.watch.watched import Watched
from rollouts.models import Alarm, WatchRecord
from rollouts.queries.alarms import every_watched_route, watched_objectives
from serving.models import Route


def route_of(model: ServedModel) -> Route:
    """The watched route of a model that has one."""
    return every_watched_route().get(model=model)


def burning(model: ServedModel, *, objective: str = "errors", tier: str = "page") -> Alarm:
    """An alarm that has just opened."""
    now, route = clock.now(), route_of(model)
    reason = f"48 of 1200 {objective} of {route.stable.name} in the last 5 min. The objective allows 1.00%; this is 4.0 times that."
    facts: dict[str, Any] = {
        "bad": 48, "attempts": 1200, "minutes": 5, "max_frac": 0.01, "burn": 4.0, "since": now.isoformat(),
    }  # fmt: skip
    return open_alarm(route, objective=objective, tier=tier, at=now, reason=reason, facts=facts)


def counted(model: ServedModel, *, bad: int, attempts: int) -> WatchRecord:
    """Requests of the last ten seconds, the same for each objective."""
    now, route = clock.now(), route_of(model)
    at = now.timestamp()
    told = {
        one.name: Watched(str(route.stable.digest), at - 600).after(at, bad, attempts, one.max_frac).to_json()
        for one in watched_objectives(model)
    }
    row, _ = WatchRecord.objects.update_or_create(
        environment=route.environment, model=model, defaults={"objectives": told, "at": now}
    )
    return row


def paged() -> Incident:
    """The incident of the only alarm that pages."""
    open_for_alarms()
    return Incident.objects.get()
