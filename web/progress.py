"""How long something that counts its work will take yet."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from accounts.core.quantities import duration_text
from validators.models import GateResult

#: A gate that has run for less says nothing of how long it will.
_LEAST_S: Final = 3.0


def left_of(result: GateResult, now: datetime) -> str:
    """Remaining time of a running gate at its present pace, in words; empty if unknown."""
    if result.verdict or result.started_at is None or not result.progress_total or not result.progress_done:
        return ""
    ran_s = (now - result.started_at).total_seconds()
    if ran_s < _LEAST_S:
        return ""
    left = result.progress_total - result.progress_done
    return f"about {duration_text(round(ran_s * left / result.progress_done))} left" if left > 0 else ""
