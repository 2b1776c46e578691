"""How much a quantity grows for each request, and how sure that is: a leak, told from warming up, steps and noise.

The run is cut into stretches, and each says how much a request added in it. A leak adds to nearly all of them; a step of an
allocator, however large, lies in one, and what swings or wanders goes up in some and down in others. So the bounds are those of
the median stretch, which hold whatever the numbers are distributed like.

Premises (`python -m benchmarks.leaks` breaks them on purpose):

- The first quarter of the requests is not looked at; what still warms up then grows ever more slowly (`is_slowing`).
- A stretch is longer than what one reading tells of the next, so that one goes up independently of the others.
- A stretch holds at least one of a leak's pieces. What an allocator had free before is used up first, and until then a leak is not
  to be seen by anybody who looks from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from statistics import fmean, median
from typing import Any

WARM_UP_FRAC = 0.25
STRETCHES = 9
#: Of each block between whose middles a stretch lies: one alone would be as rough as a reading.
_LEAST_IN_BLOCK = 2
LEAST_READINGS = (STRETCHES + 1) * _LEAST_IN_BLOCK
#: Growth that falls to this part of itself within the run is not that of a leak, or not only.
_SLOWING_FRAC = 0.5


@dataclass(frozen=True)
class Growth:
    """For each request, in the quantity's unit; `low` and `high` each hold with the confidence that was asked for."""

    per_request: float
    low: float
    high: float
    is_slowing: bool
    stretches: int
    requests: int  # over which it was measured
    readings: int
    line: tuple[
        tuple[float, float], tuple[float, float]
    ]  # (requests, level) from the first block's middle to the last's

    def as_evidence(self) -> dict[str, Any]:
        return {
            "per_request": round(self.per_request, 3),
            "low": round(self.low, 3),
            "high": round(self.high, 3),
            "is_slowing": self.is_slowing,
            "stretches": self.stretches,
            "requests": self.requests,
            "readings": self.readings,
            "line": [[round(x, 1), round(y, 1)] for x, y in self.line],
        }


def growth_of(points: Sequence[tuple[float, float]], *, confidence: float) -> Growth | None:
    """Of (requests so far, level), in their order; None for too few readings or too few stretches with requests beyond the warm-up.

    Source: the interval of the median from order statistics (the sign test inverted, Thompson 1936) of what each of STRETCHES
    pairs of neighbouring blocks adds from median level to median level, over the requests between them.
    """
    kept = [point for point in points if point[0] >= points[0][0] + WARM_UP_FRAC * (points[-1][0] - points[0][0])]
    if len(kept) < LEAST_READINGS:
        return None
    edges = [round(at * len(kept) / (STRETCHES + 1)) for at in range(STRETCHES + 2)]
    blocks = [kept[begin:end] for begin, end in pairwise(edges)]
    middles = [(fmean(x for x, _ in block), median(y for _, y in block)) for block in blocks]
    slopes = [(level - was) / (x - at) for (at, was), (x, level) in pairwise(middles) if x > at]
    exceptions = _exceptions(len(slopes), confidence)
    if exceptions is None:
        return None
    ordered, half = sorted(slopes), len(slopes) // 2
    (began, level), (ended, _) = middles[0], middles[-1]
    slope = median(slopes)
    return Growth(
        per_request=slope,
        low=ordered[exceptions],
        high=ordered[-1 - exceptions],
        is_slowing=median(slopes[-half:]) < _SLOWING_FRAC * median(slopes[:half]),
        stretches=len(slopes),
        requests=round(kept[-1][0] - kept[0][0]),
        readings=len(kept),
        line=((began, level), (ended, level + slope * (ended - began))),
    )


def _exceptions(count: int, confidence: float) -> int | None:
    """How many of `count` may lie beyond a one-sided bound of their median; None where no bound is that sure."""
    tail, at_most = 0.0, None
    for exceptions in range(count):
        tail += comb(count, exceptions) / 2**count
        if tail > 1 - confidence:
            break
        at_most = exceptions
    return at_most
