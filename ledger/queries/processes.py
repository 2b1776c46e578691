"""Which processes answer Prometheus and probes."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db.models import QuerySet
from django.db.models.functions import Now

from ledger.models import ProcessAddress

#: Processes say every 15 s where they answer; a restarted one has another address.
SEEN_WITHIN: Final = timedelta(seconds=45)


def processes() -> QuerySet[ProcessAddress]:
    """Those that said so lately, by name."""
    return ProcessAddress.objects.filter(seen_at__gt=Now() - SEEN_WITHIN).order_by("name", "address")
