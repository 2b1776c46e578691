"""A rollout's guards that count in Prometheus: their queries, and whether these return counters."""

from __future__ import annotations

from rollouts.core.indicators import INDICATORS, Source
from rollouts.core.policy import Guard
from rollouts.models import Rollout
from serving.ports import CounterQuery, ExternalMetrics, MetricsError
from serving.traffic.core.promql import fill

_QUERIED = frozenset(one.name for one in INDICATORS.values() if one.source is Source.PROMETHEUS)
NOT_CONFIGURED = "there is no Prometheus to ask: set PROMETHEUS_URL"


def prometheus_guards(rollout: Rollout) -> list[Guard]:
    """Those that count in Prometheus. Most rollouts have none, and then their policy is not read."""
    if not any(guard.get("indicator") in _QUERIED for guard in rollout.policy.get("guards") or ()):
        return []
    return [guard for guard in rollout.effective_policy.guards if guard.source is Source.PROMETHEUS]


def queries_of(rollout: Rollout, guard: Guard) -> tuple[CounterQuery, ...]:
    """Queries of a guard: bad and all of the candidate and of stable, if any."""
    arms = {"candidate": rollout.candidate, **({"stable": rollout.stable} if rollout.stable else {})}
    asked = []
    for arm, release in arms.items():
        values = {
            "release": release.name,
            "digest": release.digest or "",
            "model": rollout.model.slug,
            "environment": rollout.environment.slug,
        }
        asked.append(CounterQuery(f"{arm} bad", fill(guard.bad_query, values)))
        asked.append(CounterQuery(f"{arm} total", fill(guard.total_query, values)))
    return tuple(asked)


def query_problems(rollout: Rollout, metrics: ExternalMetrics | None, *, timeout_s: float) -> list[str]:
    """A sentence for every query of the rollout's external guards that gives no counter now. The rollout may be unsaved.

    A candidate without traffic has no counters yet: series missing for it alone are not reported.
    """
    guards = prometheus_guards(rollout)
    if not guards:
        return []
    if metrics is None:
        return [f"The guard on {guard.words} cannot count: {NOT_CONFIGURED}" for guard in guards]
    said = []
    for guard in guards:
        found = metrics.read(queries_of(rollout, guard), timeout_s=timeout_s)
        for name, one in found.items():
            is_early = name.startswith("candidate") and rollout.stable is not None
            if isinstance(one, MetricsError) and not (is_early and one.reason == "no_data"):
                said.append(f"The guard on {guard.words} cannot count the {name} ({one.reason}: {one.message})")
    return list(dict.fromkeys(said))
