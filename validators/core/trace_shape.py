"""What recorded arrivals are like: how many a second, and whether they come at random, in bursts or more evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from validators.core.trace import read_kept

#: Arrivals that are counted together, on average, to see whether the rate itself comes and goes.
_COUNTED = 10
#: Fewer gaps, or counts, tell nothing.
_LEAST_GAPS, _LEAST_COUNTS = 20, 20
#: From 1, which is random, as far as three standard deviations of chance and no less than these.
_CV_APART, _DISPERSION_APART = 0.1, 0.2


@dataclass(frozen=True)
class TraceShape:
    """`cv`: the coefficient of variation of the gaps. `dispersion`: variance over mean of the counts of arrivals in spans of ten
    gaps each; None for a trace of too few. Both are 1 where arrivals are random (Poisson), more in bursts, less where they are even.
    """

    rate_per_s: float
    cv: float
    longest_gap_s: float
    dispersion: float | None
    words: str


def shape_of_kept(data: bytes) -> TraceShape:
    """Of a trace as it is stored."""
    return shape_of(read_kept(data))


def shape_of(gaps: Sequence[float]) -> TraceShape:
    """Of gaps in seconds, which are not all 0.

    Source: of random arrivals the cv of n gaps scatters by 1/√n, and the dispersion of m counts by √(2/(m - 1)).
    """
    own = np.asarray(gaps, float)
    mean = float(own.mean())
    cv = float(own.std()) / mean
    dispersion, counts = _dispersion(own, _COUNTED * mean)
    if len(own) < _LEAST_GAPS:
        words = "too few to tell"
    else:
        apart = [_apart(cv, max(_CV_APART, 3 / math.sqrt(len(own))))]
        if dispersion is not None:
            apart.append(_apart(dispersion, max(_DISPERSION_APART, 3 * math.sqrt(2 / (counts - 1)))))
        words = "in bursts" if 1 in apart else "evenly" if -1 in apart else "at random"
    return TraceShape(
        rate_per_s=round(1 / mean, 3),
        cv=round(cv, 2),
        longest_gap_s=round(float(own.max()), 3),
        dispersion=None if dispersion is None else round(dispersion, 2),
        words=words,
    )


def _apart(value: float, allowed: float) -> int:
    return int(value > 1 + allowed) - int(value < 1 - allowed)


def _dispersion(gaps: np.ndarray[tuple[int], np.dtype[np.float64]], span_s: float) -> tuple[float | None, int]:
    """(variance over mean of the counts, how many there are), of whole spans."""
    instants = np.cumsum(gaps)
    spans = int(instants[-1] / span_s)
    if spans < _LEAST_COUNTS:
        return None, spans
    counts = np.bincount(np.minimum(instants / span_s, spans).astype(int), minlength=spans + 1)[:spans]
    return float(counts.var(ddof=1) / counts.mean()), spans
