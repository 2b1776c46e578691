"""Requests that gateways told of one by one."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from serving.models import RequestExample


def examples_of(environment: int, candidate: UUID, begin: datetime, end: datetime) -> list[RequestExample]:
    """Those that were told while this candidate stood beside a stable release and began in [begin, end), the earliest first, with
    their servers. There are never many: the control plane keeps some of each arm."""
    return list(_examples(environment=environment, candidate=candidate, begin=begin, end=end))


def _examples(environment: int, candidate: UUID, begin: datetime, end: datetime) -> QuerySet[RequestExample]:
    rows = RequestExample.objects.filter(environment=environment, candidate=candidate, at__gte=begin, at__lt=end)
    return rows.select_related("server__replica").order_by("at", "pk")


def candidates_own(
    environment_id: int, release_id: UUID, begin: datetime, end: datetime
) -> list[tuple[datetime, float]]:
    """Returns (begun at, ms that it took) of the kept requests that a candidate's own servers had, the oldest first."""
    rows = RequestExample.objects.filter(
        environment=environment_id, candidate=release_id, release=release_id, at__gte=begin, at__lt=end
    )
    return list(rows.order_by("at").values_list("at", "took_ms"))
