"""The last hour of a place's traffic, as a cell of a table: a line, what it is now, and how many requests failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accounts.core.quantities import share_text
from rollouts.core.recent_traffic import Minute
from web.plots import Markup, sparkline


@dataclass(frozen=True)
class TrafficCell:
    """`line` is drawn of requests a second by minute; `failed` is the hour's share of users' requests that failed, in words; `is_over`
    says that it is over the model's objective. `p99_ms` is stable's of the last minute that had requests, None where unknown."""

    line: Markup
    rate: str
    failed: str
    is_over: bool
    p99_ms: float | None


def traffic_cell(hour: Sequence[Minute | None], objectives: Mapping[str, Any]) -> TrafficCell | None:
    """None where nobody counted in the last hour."""
    known = [minute for minute in hour if minute is not None]
    if not known:
        return None
    rates = [None if minute is None else minute.requests / 60 for minute in hour]
    requests, errors = sum(one.requests for one in known), sum(one.errors for one in known)
    now, most = known[-1].requests / 60, max(one.requests for one in known) / 60
    share, limit = errors / requests if requests else None, objectives.get("errors_max_frac")
    quick = next((one.p99_us for one in reversed(known) if one.p99_us is not None), None)
    rate = f"{now:.3g}/s"
    return TrafficCell(
        line=sparkline(rates, label=f"{rate} in the last minute, {most:.3g}/s at most in the last hour", look="stable"),
        rate=rate,
        failed="no requests" if share is None else f"{share_text(share)} failed",
        is_over=share is not None and isinstance(limit, int | float) and share > limit,
        p99_ms=None if quick is None else quick / 1000,
    )
