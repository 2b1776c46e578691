"""A model's request rate, as last counted, for a preview."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.db.models.functions import JSONObject
from django.utils import timezone

from registry.models import ServedModel
from rollouts.core.counter_deltas import Counts
from rollouts.core.recent_traffic import RATE_MEMORY_S, Minute, RecentTraffic, Span
from rollouts.models import Observation, Rollout, TrafficRecord
from rollouts.queries.gateway_reads import last_read, last_written
from serving.environments.queries.inventory import one_environment
from serving.models import Environment

#: Counts that are older than this say nothing of the present traffic.
FRESH_FOR = timedelta(days=1)
#: As many of the last blocks of observations are looked at.
BLOCKS = 60


@dataclass(frozen=True)
class Traffic:
    """Requests a second of the whole model and stable's share of errors; None if unknown. `source` names their source.

    `window_s`: over about how many seconds the rate is an average.
    `slow_frac`: the share of slow attempts by counter (`slow_50ms`), of stable or of a first release, by the last rollout.
    """

    rate_per_s: float | None
    error_frac: float | None
    source: str
    slow_frac: Mapping[str, float] = field(default_factory=dict)
    window_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        return self.__dict__


def traffic_of(model: ServedModel, environment: Environment) -> Traffic:
    """As the engine counted it at the gateways, else by the last rollout that saw traffic, else unknown. One query."""
    since = timezone.now() - FRESH_FOR
    row: Any = counted(one_environment(environment.pk), model.pk, since).get()
    return traffic_from(row.tested, row.blocks)


def counted(environments: QuerySet[Environment], model: int, since: datetime) -> QuerySet[Environment]:
    """The environments, each with what `traffic_from` reads of the model's traffic there; `since`: the oldest count that is still used."""
    tested = TrafficRecord.objects.filter(model=model, environment=OuterRef("pk"), at__gte=since)
    ticked = Observation.objects.filter(rollout=OuterRef("pk"))
    seen = Rollout.objects.filter(Exists(ticked), model=model, environment=OuterRef(OuterRef("pk"))).order_by("-pk")
    blocks = Observation.objects.filter(rollout=Subquery(seen.values("pk")[:1])).order_by("-tick")
    columns = {name: name for name in ("rollout", "from_at", "at", "candidate", "stable")}
    return environments.annotate(
        tested=Subquery(tested.values("state")[:1]),
        blocks=ArraySubquery(blocks.values(row=JSONObject(**columns))[:BLOCKS]),
    )


def traffic_from(tested: Mapping[str, Any] | None, blocks: Sequence[Mapping[str, Any]]) -> Traffic:
    """As `traffic_of`, from the engine's counts and the last rollout's blocks of observations, the newest first."""
    watched, seen = _by_gateways(tested or {}), _by_last_rollout(blocks)
    if watched is not None and seen is not None:
        errors = seen.error_frac if watched.error_frac is None else watched.error_frac
        return replace(watched, error_frac=errors, slow_frac=seen.slow_frac)
    return watched or seen or Traffic(None, None, "unknown")


#: Where a rate comes from that somebody supposes.
TYPED = "as typed"


def supposed(traffic: Traffic, rate_per_s: float | None) -> Traffic:
    """The traffic with an assumed rate; unchanged without one."""
    return traffic if rate_per_s is None else replace(traffic, rate_per_s=rate_per_s, source=TYPED, window_s=None)


@dataclass(frozen=True)
class Lately:
    """A model's traffic in one environment: each of the last 60 minutes (see `RecentTraffic.hour`), and the last seconds that were
    counted, None if those are not of the present (`RecentTraffic.now`). `counted_at`: when the last request could have been counted.

    `read_at`: when all gateways of the environment were last read, None if never; `written_at`: when the engine last wrote that.
    """

    hour: list[Minute | None]
    now: Span | None
    p99_us: int | None  # of stable's answers in the minute that is open, or in the one before
    counted_at: datetime | None = None
    read_at: datetime | None = None
    written_at: datetime | None = None


def kept_traffic(model: ServedModel, environment: Environment) -> TrafficRecord | None:
    """The engine's figures of the model's traffic there; None before its first count."""
    return TrafficRecord.objects.filter(model=model, environment=environment).first()


def lately_of(models: Collection[ServedModel], now: datetime) -> dict[tuple[int, int], Lately]:
    """(environment's key, model's key) → its traffic. One query."""
    rows = TrafficRecord.objects.filter(model__in=models, at__gte=now - FRESH_FOR).values_list(
        "environment_id", "model_id", "traffic", last_read(), last_written()
    )
    found = {}
    for environment, model, kept, read_at, written_at in rows:
        traffic = RecentTraffic.from_json(kept)
        last = [one.p99_us for one in traffic.minutes[-2:] if one.p99_us is not None]
        now_s = now.timestamp()
        counted = None if traffic.counted_s is None else datetime.fromtimestamp(traffic.counted_s, UTC)
        hour, p99_us = traffic.hour(now_s), last[-1] if last else None
        found[environment, model] = Lately(hour, traffic.now(now_s), p99_us, counted, read_at, written_at)
    return found


def _by_gateways(state: Mapping[str, Any]) -> Traffic | None:
    rate = state.get("rate_per_s")
    if not rate:
        return None
    return Traffic(float(rate), state.get("error_frac"), "gateways", window_s=RATE_MEMORY_S)


def _by_last_rollout(blocks: Sequence[Mapping[str, Any]]) -> Traffic | None:
    if not blocks:
        return None
    # The counts of the oldest block may reach back before it began, unless it spans more than one tick.
    newest, oldest = blocks[0], blocks[-1]
    spans_ticks = datetime.fromisoformat(oldest["from_at"]) < datetime.fromisoformat(oldest["at"])
    kept = blocks if spans_ticks else blocks[:-1]
    began = oldest["from_at"] if spans_ticks else oldest["at"]
    span_s = (datetime.fromisoformat(newest["at"]) - datetime.fromisoformat(began)).total_seconds()
    stable = sum(one["stable"].get("attempts", 0) for one in kept)
    attempts = stable + sum(one["candidate"].get("attempts", 0) for one in kept)
    if span_s <= 0 or not attempts:
        return None
    bad = sum(one["stable"].get("bad", {}).get("errors", 0) for one in kept)
    slow = _slow([one["stable" if stable else "candidate"] for one in kept])
    errors = round(bad / stable, 6) if stable else None
    return Traffic(round(attempts / span_s, 3), errors, f"rollout {newest['rollout']}", slow, round(span_s, 1))


def _slow(counts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    known = [Counts(one.get("attempts", 0), bad=one.get("bad", {})) for one in counts]
    names = sorted({name for one in known for name in one.bad if name.startswith("slow_")})
    arms = {
        name: (sum(one.bad.get(name, 0) for one in known), sum(one.timed_at(name) for one in known)) for name in names
    }
    return {name: round(bad / attempts, 6) for name, (bad, attempts) in arms.items() if attempts}
