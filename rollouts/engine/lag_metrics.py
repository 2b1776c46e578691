"""Does the engine keep up? How late ticks begin, and how long turns take, as the engine's own `/metrics` show it."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Histogram

LAG_SECONDS = Histogram(
    "sluicegate_engine_tick_lag_seconds",
    "How late each tick of a rollout began.",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
TURN_SECONDS = Histogram(
    "sluicegate_engine_turn_seconds",
    "Time of each look at every active rollout.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0),
)


def observe_turn(lags: Sequence[float], turn_s: float) -> None:
    """Counts a look at every active rollout, with the lag of each tick against its schedule."""
    TURN_SECONDS.observe(turn_s)
    for lag in lags:
        LAG_SECONDS.observe(lag)
