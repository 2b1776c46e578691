"""Windows of latency that the engine has counted, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from django.db import transaction

from rollouts.core.latency import OpenWindow
from rollouts.models import LatencyWindow, Rollout


@transaction.atomic
def record_latency(windows: Mapping[int, OpenWindow], *, fence: int) -> int:
    """Stores these windows by rollout; how many were. Those of rollouts that a newer engine writes are left out."""
    # Locked to the end, as with a tick: a newer engine that lifts the fence meanwhile waits, or ends this transaction.
    seen = Rollout.objects.select_for_update(no_key=True).order_by("pk").filter(pk__in=windows, fence__lte=fence)
    ours = set(seen.values_list("pk", flat=True))
    rows = [
        LatencyWindow(
            rollout_id=pk,
            from_at=datetime.fromtimestamp(window.from_at, UTC),
            at=datetime.fromtimestamp(window.at, UTC),
            candidate=list(window.candidate),
            stable=list(window.stable),
        )
        for pk, window in sorted(windows.items())
        if pk in ours
    ]
    return len(LatencyWindow.objects.bulk_create(rows))
