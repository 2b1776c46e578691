"""Processes tell where they answer Prometheus and probes."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db.models.functions import Now

from ledger.models import ProcessAddress

#: A process that was silent for so long is forgotten.
FORGOTTEN_AFTER: Final = timedelta(days=1)


def note_process(address: str, name: str) -> None:
    """Notes that the process `name` answers at `address` (host:port) now."""
    now = Now()
    ProcessAddress.objects.bulk_create(
        [ProcessAddress(address=address, name=name, seen_at=now)],
        update_conflicts=True,
        unique_fields=["address"],
        update_fields=["name", "seen_at"],
    )
    ProcessAddress.objects.filter(seen_at__lt=Now() - FORGOTTEN_AFTER).delete()
