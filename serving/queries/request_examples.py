"""Requests that gateways told of one by one."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from ledger.queries.statements import Statement
from serving.models import RequestExample


def examples_of(environment: int, candidate: UUID, begin: datetime, end: datetime) -> list[RequestExample]:
    """Those that were told while this candidate stood beside a stable release and began in [begin, end), the earliest first, with
    their servers. There are never many: the control plane keeps some of each arm."""
    return _EXAMPLES.rows(environment=environment, candidate=candidate, begin=begin, end=end)


def _examples(environment: int, candidate: UUID, begin: datetime, end: datetime) -> QuerySet[RequestExample]:
    rows = RequestExample.objects.filter(environment=environment, candidate=candidate, at__gte=begin, at__lt=end)
    return rows.select_related("server__deployment").order_by("at", "pk")


_EXAMPLES = Statement(_examples)
