"""What an incident keeps when it opens, because it is gone later: traffic, alarms, replicas, a server's log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from registry.models import Release, ServedModel
from rollouts.queries.alarms import live_alarms
from rollouts.queries.traffic import lately_of
from serving.environments.queries.inventory import log_of, replicas_of
from serving.models import Environment

#: Characters of a server's log: the end of it.
LOG_MOST: Final = 16_000


def evidence(model: ServedModel, environment: Environment, release: Release | None, now: datetime) -> dict[str, Any]:
    """The evidence as JSON, empty or null if unknown. `log`: of the newest server whose log was kept."""
    lately = lately_of([model], now).get((environment.pk, model.pk))
    minutes = [
        {
            "at": datetime.fromtimestamp(60 * one.at, UTC).isoformat(), "requests": one.requests, "errors": one.errors,
            "shed": one.shed, "p99_ms": None if one.p99_us is None else one.p99_us / 1000,
        }
        for one in (lately.hour if lately else [])
        if one is not None
    ]  # fmt: skip
    return {
        "at": now.isoformat(),
        "minutes": minutes,
        "alarms": [
            {"objective": one.objective, "tier": one.tier, "reason": one.reason, **one.facts}
            for one in live_alarms().filter(model=model, environment=environment)
        ],
        "replicas": _replicas(release, environment),
        "log": _log(release, environment, now),
    }


def _replicas(release: Release | None, environment: Environment) -> list[dict[str, Any]]:
    rows = replicas_of(release).filter(environment=environment)[:20] if release else []
    return [{"node": one.node_id, "ordinal": one.ordinal, "state": one.state, "reason": one.reason} for one in rows]


def _log(release: Release | None, environment: Environment, now: datetime) -> dict[str, Any] | None:
    found = log_of(release, environment, now) if release else None
    return None if found is None else {"at": found.at.isoformat(), "text": found.text[-LOG_MOST:]}
