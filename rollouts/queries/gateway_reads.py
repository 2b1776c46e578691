"""Whether the engine reads the gateways of an environment: otherwise service of its users is unknown.

The engine reads all gateways of an environment each second, whatever models they route, and writes what it counted
(`rollouts.engine.stable_traffic`). A gateway that is frozen keeps its connection to the control plane for a while, so only a read shows it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import DateTimeField, Exists, F, FloatField, Func, Max, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils import timezone

from registry.models import ServedModel
from rollouts.core.recent_traffic import NOW_WITHIN_S
from rollouts.models import TrafficRecord
from rollouts.queries.alarms import alarm_column
from serving.environments.queries.reporting import reports_since
from serving.models import Route
from serving.traffic.queries.endpoints import with_answering
from serving.traffic.queries.routes import model_routes

#: Gateways whose last read is older than this are unread: the engine writes more often.
READ_WITHIN: Final = timedelta(seconds=NOW_WITHIN_S)
#: If the engine's last write is this much later than its last read, it could not read in between. It reads each second.
MISSED: Final = timedelta(seconds=4)


def is_read(read_at: datetime | None, written_at: datetime | None, now: datetime) -> bool:
    """Whether the gateways were read lately enough to speak for the present. `written_at`: when the engine last wrote."""
    if read_at is None or written_at is None:
        return False
    return now - read_at <= READ_WITHIN and written_at - read_at <= MISSED


def is_engine_up(written_at: datetime | None, now: datetime) -> bool:
    """Whether the engine wrote lately."""
    return written_at is not None and now - written_at <= READ_WITHIN


def last_read() -> Subquery:
    """For a query with the column `environment`: when all gateways there were last read, None if they never were."""
    return Subquery(_newest("counted_at"))


def last_written() -> Subquery:
    """For the same: when the engine last wrote what it counted there, whether it could read the gateways or not."""
    return Subquery(_newest("at"))


def lost_or_unread(reports: datetime, reads: datetime) -> QuerySet[Any]:
    """Routes of models that are awake, of which stable has no server that is known to answer, or whose gateways were not read since
    `reads`. `reports`: `reports_since`."""
    return with_answering(reports).filter(Q(answering=0) | unread(reads), is_asleep=False)


def route_standing() -> list[tuple[int, str, int, bool]]:
    """(route, model's slug, servers known to answer for its stable release, whether its gateways are unread) of every route that
    gateways follow. One query."""
    is_unread = unread(timezone.now() - READ_WITHIN)
    routes = with_answering(reports_since()).annotate(slug=F("model__slug"), is_unread=is_unread)
    return list(routes.order_by("pk").values_list("pk", "slug", "answering", "is_unread"))


def read_routes(model: ServedModel) -> list[Route]:
    """As `routes_of` of serving, and each with `alarms`, `read_at` and `written_at`: see `last_read` and `last_written`."""
    told = {"alarms": alarm_column(), "read_at": last_read(), "written_at": last_written()}
    return list(model_routes(model.pk, reports_since()).annotate(**told))


def unread(since: Any) -> Q:
    """Condition on routes whose environment was counted once and was not read since this instant. An environment that was never
    counted is new."""
    here = TrafficRecord.objects.filter(environment=OuterRef("environment"))
    read = here.annotate(counted_at=_COUNTED_AT).filter(counted_at__gte=since).filter(counted_at__gte=F("at") - MISSED)
    return Q(Exists(here)) & ~Q(Exists(read))


_COUNTED_AT = Func(Cast(KT("traffic__counted_s"), FloatField()), function="to_timestamp", output_field=DateTimeField())


def _newest(column: str) -> QuerySet[Any, Any]:
    rows = TrafficRecord.objects.filter(environment=OuterRef("environment")).annotate(counted_at=_COUNTED_AT).order_by()
    return rows.values("environment").annotate(newest=Max(column)).values("newest")
