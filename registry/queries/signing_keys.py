"""Named reads of what each signing key has signed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min

from registry.models import Attestation


@dataclass(frozen=True)
class KeyUse:
    """How many statements carry a key's signature, and between which instants they were made."""

    count: int
    first_at: datetime | None
    last_at: datetime | None


def attestations_by_key() -> dict[str, KeyUse]:
    """By key id: signatures of releases and statements about them."""
    rows = (
        Attestation.objects.values_list("key_id")
        .annotate(Count("pk"), Min("made_at"), Max("made_at"))
        .order_by("key_id")
    )
    return {key: KeyUse(count, first, last) for key, count, first, last in rows}
