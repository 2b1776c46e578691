"""The share of requests over their objective as it grows with the rate: a curve through what was measured at several rates.

It says where to measure next, and nothing else: no verdict rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: How steeply the log odds of being over grow with the log of the rate, before anything was measured, and how sure that is.
#: Source: simulated single queues around their limit have 8 to 15 (`python -m benchmarks.capacity`).
_STEEPNESS, _SPREAD = 10.0, 3.0
_STEPS, _LONGEST_STEP = 25, 2.0


@dataclass(frozen=True)
class Seen:
    """Of `requests` at a rate, so many were `over`; both divided by their dispersion."""

    rate_per_s: float
    over: float
    requests: float


@dataclass(frozen=True)
class OverloadCurve:
    """Log odds of being over at a rate: `level` + `steepness` × log of the rate."""

    level: float
    steepness: float

    def rate_at(self, share: float) -> float:
        """The rate per second at which this share is over; `share` in (0, 1)."""
        return math.exp((math.log(share / (1 - share)) - self.level) / self.steepness)


def curve_through(seen: Sequence[Seen]) -> OverloadCurve:
    """The most likely curve through at least one rate; half a request is added to each, so that none over is no certainty.

    Source: logistic regression with a normal prior on the steepness, by Newton's method.
    """
    x = np.log([one.rate_per_s for one in seen])
    requests = np.array([one.requests for one in seen])
    over = np.array([one.over for one in seen])
    middle = float(x.mean())
    rows = np.column_stack([np.ones_like(x), x - middle])
    found = np.array([math.log(over.sum() / (requests - over).sum()), _STEEPNESS])
    for _ in range(_STEPS):
        share = 1 / (1 + np.exp(-np.clip(rows @ found, -30, 30)))
        pull = rows.T @ (over - requests * share) - np.array([0.0, (found[1] - _STEEPNESS) / _SPREAD**2])
        bend = (rows.T * (requests * share * (1 - share))) @ rows + np.diag([1e-9, 1 / _SPREAD**2])
        found = found + np.clip(np.linalg.solve(bend, pull), -_LONGEST_STEP, _LONGEST_STEP)
    steepness = max(1.0, float(found[1]))
    return OverloadCurve(float(found[0]) - steepness * middle, steepness)
