"""What memory each model holds on the nodes, and which of them sleep and hold none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, CharField, Count, DateTimeField, F, Q, Sum, Value, When
from django.db.models.functions import Coalesce

from accounts.core.access import Actor
from registry.queries import visible_models
from serving.core.sleep_lifecycle import SleepState
from serving.models import Sleep
from serving.queries.memory_sums import with_memory
from serving.queries.reporting import on_reporting, reports_since

_COLUMNS = ("where", "title", "named", "running", "measured", "held_bytes", "declared_mib", "how", "quiet")


@dataclass
class ModelMemory:
    """A model in an environment, with how it is there. Without a name: all models there that the asker may not read."""

    model: str
    environment: str
    title: str  # of the environment
    servers: int = 0
    measured: int = 0  # of its servers, those whose memory is known: their nodes report
    held_bytes: int = 0
    declared_mib: int = 0
    state: str = str(SleepState.AWAKE)
    quiet_since: datetime | None = None  # no request was counted since; None: not known, or nobody looks

    @property
    def measured_mib(self) -> int | None:
        """What its servers hold, where all of them were measured: 0 where it has none."""
        return round(self.held_bytes / 2**20) if self.measured == self.servers else None


def memory_of_models(actor: Actor) -> list[ModelMemory]:
    """Those that hold most first, those that sleep last. One query, in which the database sums, and two to know which."""
    found: dict[tuple[str, str], ModelMemory] = {}
    for where, title, model, servers, measured, held, declared, how, quiet in _rows(actor):
        one = found.setdefault((where, model), ModelMemory(model, where, title))
        if how:
            one.state, one.quiet_since = how, quiet
        else:
            one.servers, one.measured, one.held_bytes, one.declared_mib = servers, measured, int(held), int(declared)
    return sorted((one for one in found.values() if one.servers or one.state != SleepState.AWAKE), key=_biggest_first)


def _rows(actor: Actor) -> Iterable[tuple[Any, ...]]:
    """`_COLUMNS` of what deployments that are not gone hold and their envelopes ask for, and of what was said of sleep (`how`)."""
    mine = visible_models(actor).order_by().values("pk")
    sums = (
        with_memory()
        .annotate(
            where=F("environment__slug"),
            title=F("environment__title"),
            named=Case(When(release__model__in=mine, then="release__model__slug"), default=Value("")),
        )
        .values("where", "title", "named")
        .annotate(
            running=Count("pk"),
            measured=Count("held", filter=on_reporting(reports_since(), "node__")),
            held_bytes=Coalesce(Sum("held"), 0),
            declared_mib=Coalesce(Sum("asked", filter=~Q(named="")), 0),
            how=Value("", CharField()),
            quiet=Value(None, DateTimeField()),
        )
    )
    said = Sleep.objects.filter(model__in=mine).annotate(
        where=F("environment__slug"),
        title=F("environment__title"),
        named=F("model__slug"),
        how=F("state"),
        quiet=F("quiet_since"),
        **{name: Value(0) for name in ("running", "measured", "held_bytes", "declared_mib")},
    )
    return sums.values_list(*_COLUMNS).union(said.order_by().values_list(*_COLUMNS), all=True)


def _biggest_first(one: ModelMemory) -> tuple[bool, int, str, str]:
    size = one.declared_mib if one.measured_mib is None else one.measured_mib
    return one.state == SleepState.ASLEEP, -size, one.model, one.environment
