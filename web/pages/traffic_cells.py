"""The traffic of a model in one environment: the last seconds, the last hour, and a line, for a cell of a table or a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounts.core.quantities import share_text
from rollouts.core.recent_traffic import SPAN_S
from rollouts.queries.traffic import Lately
from web.plots import Markup, sparkline


@dataclass(frozen=True)
class TrafficCell:
    """`line` is drawn of requests a second by minute. `now` is the share of users' requests that failed in the last seconds, in words,
    `hour` that of the last hour. `is_failing` and `is_over` state that these are over the model's objective. `shed` is the hour's
    share that was refused because too many requests were in flight, empty for none.

    `p99_ms` is stable's in the minute that was counted last, over answers alone; None if unknown or if stable gave no answer.
    """

    line: Markup
    rate: str
    now: str
    hour: str
    is_failing: bool
    is_over: bool
    shed: str
    p99_ms: float | None
    failing_sentence: str


def traffic_cell(lately: Lately | None, objectives: Mapping[str, Any]) -> TrafficCell | None:
    """None if no gateway was read in the last hour."""
    known = [minute for minute in lately.hour if minute is not None] if lately is not None else []
    if lately is None or (not known and lately.now is None):
        return None
    rates = [None if minute is None else minute.requests / 60 for minute in lately.hour]
    requests, errors, shed = (sum(getattr(one, name) for one in known) for name in ("requests", "errors", "shed"))
    now, most = lately.now, max((one.requests for one in known), default=0) / 60
    per_s = now.requests / (3 * SPAN_S) if now is not None else known[-1].requests / 60
    limit = objectives.get("errors_max_frac")
    now_share = now.errors / now.requests if now is not None and now.requests else None
    share = errors / requests if requests else None
    rate = f"{per_s:.3g}/s"
    return TrafficCell(
        line=sparkline(rates, label=f"{rate} now, {most:.3g}/s at most in the last hour", look="stable"),
        rate=rate,
        now="no requests" if now_share is None else f"{share_text(now_share)} failed",
        hour="no requests" if share is None else f"{share_text(share)} failed",
        is_failing=_is_over(now_share, limit),
        is_over=_is_over(share, limit),
        shed=f"{share_text(shed / requests)} shed" if shed else "",
        p99_ms=None if lately.p99_us is None else lately.p99_us / 1000,
        failing_sentence=_evidence(now_share, now.requests if now is not None else 0),
    )


def _is_over(share: float | None, limit: Any) -> bool:
    """Whether the share is over the objective; without an objective, whether every request failed."""
    if share is None:
        return False
    return share > limit if isinstance(limit, int | float) else share == 1.0


def _evidence(share: float | None, requests: int) -> str:
    """What the gateways counted in the last seconds, as a sentence: whether users are hit."""
    if share is None:
        return "The gateways counted no request in the last seconds."
    return f"The gateways counted {requests} requests in the last seconds: {share_text(share)} failed."
