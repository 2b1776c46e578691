"""Traffic of many models in bins of 10 s: how many requests came, and how many were bad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollouts.core.watch.sequential_test import PAGE

DAY_BINS = round(86_400 / PAGE.bin_s)
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stream:
    """Attributes:
    rate_per_s: at the daily peak. The trough has a twentieth, weekends have a third of it.
    limit: the objective's share.
    healthy: mean share of bad requests, as a part of the objective.
    wander: standard deviation of the share's logarithm, with a memory of ten minutes. 0: the share is constant.
    bursts: bursts a day, of 5 to 40 s in which 20 to 60 % fail. Callers send 30 % of what failed again.
    """

    name: str
    rate_per_s: float
    limit: float
    healthy: float = 0.2
    wander: float = 0.0
    bursts: float = 1.0

    def days(self, models: int, days: int, rng: np.random.Generator) -> Iterator[tuple[Counts, Counts]]:
        """(bad, requests) of each day, as arrays of bins × models."""
        phase = rng.uniform(0, 1, models)
        memory = np.exp(-PAGE.bin_s / 600)
        log_share = rng.normal(0, self.wander, models) if self.wander else np.zeros(models)
        for day in range(days):
            rate = self.rate_per_s * _of_day(phase) * (1 / 3 if day % 7 >= 5 else 1.0)
            share = np.full((DAY_BINS, models), self.healthy * self.limit)
            if self.wander:
                steps = rng.normal(0, self.wander * np.sqrt(1 - memory**2), (DAY_BINS, models))
                for i in range(DAY_BINS):
                    log_share = memory * log_share + steps[i]
                    share[i] *= np.exp(log_share - self.wander**2 / 2)
            if self.bursts:
                _add_bursts(share, self.bursts, rng)
            requests = rng.poisson(rate * PAGE.bin_s)
            bad = rng.binomial(requests, np.minimum(share, 1.0))
            again = rng.binomial(bad, 0.3)
            yield bad + rng.binomial(again, np.minimum(share, 1.0)), requests + again


def _of_day(phase: Floats) -> Floats:
    """The rate as a part of the peak's, of bins × models."""
    day = np.linspace(0, 1, DAY_BINS, endpoint=False)[:, None]
    return 0.05 + 0.95 * (0.5 - 0.5 * np.cos(2 * np.pi * (day + phase)))


def _add_bursts(share: Floats, bursts: float, rng: np.random.Generator) -> None:
    bins, models = share.shape
    for model in range(models):
        for _ in range(rng.poisson(bursts)):
            begin, seconds, level = rng.integers(bins), rng.uniform(5, 40), rng.uniform(0.2, 0.6)
            while seconds > 0 and begin < bins:
                part = min(seconds, PAGE.bin_s) / PAGE.bin_s
                share[begin, model] = max(share[begin, model], level * part)
                seconds -= PAGE.bin_s
                begin += 1


STREAMS = (
    *(Stream(f"errors 1 %, {rate:g}/s", rate, 0.01) for rate in (0.1, 1, 10, 100, 1000)),
    *(Stream(f"errors .1 %, {rate:g}/s", rate, 0.001) for rate in (0.1, 1, 10, 100, 1000)),
    *(Stream(f"latency 1 %, {rate:g}/s", rate, 0.01, 0.3, 0.7, 0.0) for rate in (1, 10, 100, 1000)),
)
