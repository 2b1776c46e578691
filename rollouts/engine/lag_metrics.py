"""Does the engine keep up? How late ticks begin, and how long turns take, measured by the engine itself."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import structlog
from prometheus_client import Histogram

from ledger.adapters.files import write_whole

log = structlog.get_logger(__name__)
#: The figures are told and begun anew this often.
TOLD_EVERY_S = 60.0
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
#: In the state folder, for whoever watches the machine.
PACE_FILE = "engine-pace.json"


@dataclass(frozen=True)
class LagFigures:
    """Of the last minute. `lag`: how late a rollout's tick began against its schedule. A turn looks at every active rollout once."""

    at: str
    owner: str
    rollouts: int
    turns: int
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float
    turn_p50_s: float
    turn_p99_s: float
    turn_max_s: float


class LagMetrics:
    """Collects the figures, and writes them once a minute: to the log, and to a file if configured."""

    def __init__(self, owner: str, file: Path | None = None) -> None:
        self.owner, self.file = owner, file
        self._lags: list[float] = []
        self._turns: list[float] = []
        self._rollouts = 0
        self._told_at: datetime | None = None

    def turn(self, now: datetime, lags: Sequence[float], turn_s: float) -> LagFigures | None:
        """Adds a turn, with the lag of each of its ticks. Returns the figures once a minute."""
        self._lags += lags
        self._turns.append(turn_s)
        TURN_SECONDS.observe(turn_s)
        for lag in lags:
            LAG_SECONDS.observe(lag)
        self._rollouts = max(self._rollouts, len(lags))
        self._told_at = self._told_at or now
        if (now - self._told_at).total_seconds() < TOLD_EVERY_S:
            return None
        figures = self.figures(now)
        log.info("engine_pace", **{k: v for k, v in asdict(figures).items() if k not in {"at", "owner"}})
        if self.file is not None:
            _keep(self.file, figures)
        self._lags, self._turns, self._rollouts, self._told_at = [], [], 0, now
        return figures

    def figures(self, now: datetime) -> LagFigures:
        """Figures since the last report."""
        lags, turns = sorted(self._lags), sorted(self._turns)
        of_lags = [_quantile(lags, share) for share in (0.5, 0.99, 1)]
        of_turns = [_quantile(turns, share) for share in (0.5, 0.99, 1)]
        return LagFigures(now.isoformat(), self.owner, self._rollouts, len(turns), *of_lags, *of_turns)


def _keep(file: Path, figures: LagFigures) -> None:
    """What stands in the way of telling never stands in the way of the engine."""
    try:
        write_whole(file, json.dumps(asdict(figures)))
    except OSError as error:
        log.warning("engine_pace_not_kept", error=str(error))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 4) if ordered else 0.0
