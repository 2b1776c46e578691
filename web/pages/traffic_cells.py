"""The traffic of a model in one environment: the last seconds, the last hour, and a line, for a cell of a table or a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from accounts.core.quantities import share_text
from rollouts.core.recent_traffic import SPAN_S
from rollouts.queries.traffic import Lately
from web.plots import Markup, sparkline


@dataclass(frozen=True)
class TrafficCell:
    """`line` is drawn of requests a second by minute. `now` is the share of users' requests that failed in the last seconds, in
    words, or since when that is unknown; `rate` is empty then. `hour` is the share of the last hour.

    `is_failing` and `is_over` state that these are over the model's objective. `shed` is the hour's share that was refused
    because too many requests were in flight, empty for none.

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
    """None if no gateway was ever read for the model."""
    known = [minute for minute in lately.hour if minute is not None] if lately is not None else []
    if lately is None or (not known and lately.counted_at is None):
        return None
    rates = [None if minute is None else minute.requests / 60 for minute in lately.hour]
    requests, errors, shed = (sum(getattr(one, name) for one in known) for name in ("requests", "errors", "shed"))
    now, most = lately.now, max((one.requests for one in known), default=0) / 60
    limit = objectives.get("errors_max_frac")
    now_share = now.errors / now.requests if now is not None and now.requests else None
    share = errors / requests if requests else None
    rate = "" if now is None else f"{now.requests / (3 * SPAN_S):.3g}/s"
    present = f"{rate} now" if rate else "unknown now"
    return TrafficCell(
        line=sparkline(rates, label=f"{present}, {most:.3g}/s at most in the last hour", look="stable"),
        rate=rate,
        now=_unknown_since(lately) if now is None else _failed(now_share),
        hour=_failed(share),
        is_failing=_is_over(now_share, limit),
        is_over=_is_over(share, limit),
        shed=f"{share_text(shed / requests)} shed" if shed else "",
        p99_ms=None if now is None or lately.p99_us is None else lately.p99_us / 1000,
        failing_sentence=_evidence(lately, now_share),
    )


def _is_over(share: float | None, limit: Any) -> bool:
    """Whether the share is over the objective; without an objective, whether every request failed."""
    if share is None:
        return False
    return share > limit if isinstance(limit, int | float) else share == 1.0


def _failed(share: float | None) -> str:
    return "no requests" if share is None else f"{share_text(share)} failed"


def _unknown_since(lately: Lately) -> str:
    at = lately.counted_at
    return "unknown" if at is None else f"unknown since {at.astimezone(UTC):%H:%M:%S} UTC"


def _evidence(lately: Lately, share: float | None) -> str:
    """The gateways' counts of the last seconds, as a sentence: whether users are hit."""
    if lately.now is None:
        return f"The gateways' counts are {_unknown_since(lately)}, so it is unknown whether users are hit."
    if share is None:
        return "The gateways counted no request in the last seconds."
    return f"The gateways counted {lately.now.requests} requests in the last seconds: {share_text(share)} failed."
