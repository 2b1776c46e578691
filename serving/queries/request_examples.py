"""Requests that gateways told of one by one."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from serving.models import RequestExample


def examples_of(environment: int, candidate: UUID, begin: datetime, end: datetime) -> QuerySet[RequestExample]:
    """Those that were told while this candidate stood beside a stable release and began in [begin, end), the earliest first, with
    their servers. There are never many: the control plane keeps some of each arm."""
    rows = RequestExample.objects.filter(environment=environment, candidate=candidate, at__gte=begin, at__lt=end)
    return rows.select_related("server__deployment").order_by("at", "pk")
