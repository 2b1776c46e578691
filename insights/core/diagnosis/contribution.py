"""Who: which value of a dimension carries a shift, apart from a change of mix and of volume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from insights.core.diagnosis.series import Array, Counts, Mask

#: A value with fewer requests than this before or after the shift is not judged.
LEAST_REQUESTS: Final = 100
#: Part of the shift that is left without a value.
GONE, HALF = 0.25, 0.75
LEAST_SCORE: Final = 0.15
#: Requests must have grown so much for a value to be named as the one that sends more.
LEAST_GROWTH: Final = 1.2
#: So large a part of all requests must be beyond the trend of the others.
LEAST_BEYOND: Final = 0.1
_Z: Final = 2.0


class Without(StrEnum):
    """What the shift becomes without the requests of a value."""

    GONE = "gone"
    HALF = "half"
    UNCHANGED = "unchanged"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Part:
    """A value's part of the shift of the share of bad requests.

    Attributes:
        mix, rate: parts of the shift (1.0: all of it) by its changed share of requests, and by its changed rate.
        score: `mix + rate` minus its share of requests, or of the bad requests before if that is larger: if all rates rise by one
            factor, no value stands out. `low` and `high`: the interval from the counts.
        deviations: change of its rate, in deviations of its counts.
        without: what is left of the shift without its requests.
    """

    value: str
    without: Without
    share_before: float
    share_now: float
    rate_before: float
    rate_now: float
    mix: float
    rate: float
    score: float
    low: float
    high: float
    deviations: float

    @property
    def explains(self) -> bool:
        return self.low > 0 and self.score >= LEAST_SCORE and self.without in (Without.GONE, Without.HALF)


@dataclass(frozen=True)
class Parts:
    """A dimension's parts, the highest score first; `mix` is the part of the shift that the mix of values explains."""

    dimension: str
    mix: float
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Growth:
    """Growth of requests: of `value`, or of all values alike if it is empty. `score`: the part of its requests beyond the others' trend."""

    dimension: str
    value: str
    ratio: float
    score: float


def parts_of(dimension: str, values: Mapping[str, Counts], signal: str, before: Mask, now: Mask) -> Parts | None:
    """None if the share did not change or too few values have enough requests."""
    names = sorted(values)
    table = np.array([[*_sums(values[one], signal, before), *_sums(values[one], signal, now)] for one in names])
    if not len(names) or min(table[:, 0].sum(), table[:, 2].sum()) < LEAST_REQUESTS:
        return None
    n0, bad0, n1, bad1 = table.T
    w0, w1 = n0 / n0.sum(), n1 / n1.sum()
    whole0, whole1 = bad0.sum() / n0.sum(), bad1.sum() / n1.sum()
    shift = whole1 - whole0
    if abs(shift) < 1e-9:
        return None
    r0 = np.where(n0 > 0, bad0 / np.maximum(n0, 1), whole0)
    r1 = np.where(n1 > 0, bad1 / np.maximum(n1, 1), whole1)
    mix = (w1 - w0) * ((r0 + r1) / 2 - (whole0 + whole1) / 2) / shift
    rate = (w0 + w1) / 2 * (r1 - r0) / shift
    phi = max(_dispersion(values[one], signal, now) for one in names)
    noise = phi * (_variance(r0, n0) + _variance(r1, n1))
    error = _Z * (w0 + w1) / 2 * np.sqrt(noise) / abs(shift)
    score = mix + rate - np.maximum((w0 + w1) / 2, bad0 / max(bad0.sum(), 1))
    left = [_without(table, i, shift) for i in range(len(names))]
    columns = w0, w1, r0, r1, mix, rate, score, score - error, score + error, (r1 - r0) / np.sqrt(noise)
    rows = np.stack(columns, axis=1).tolist()
    parts = [Part(name, without, *row) for name, row, without in zip(names, rows, left, strict=True)]
    return Parts(dimension, float(mix.sum()), tuple(sorted(parts, key=lambda part: -part.score)))


def growth_of(dimension: str, values: Mapping[str, Counts], before: Mask, now: Mask) -> Growth | None:
    """The value that sends more than the others' trend lets expect; without one, all values if requests grew; else None."""
    rates = {one: (_mean(counts.total, before), _mean(counts.total, now)) for one, counts in values.items()}
    first, then = (sum(one[i] for one in rates.values()) for i in (0, 1))
    beyond: dict[str, float] = {}
    for one, (a, b) in rates.items():
        trend = (then - b) / (first - a) if first - a > 0 else 1.0
        beyond[one] = b - a * trend
    top = max(beyond, key=lambda one: (beyond[one], one), default="")
    if top and beyond[top] >= LEAST_BEYOND * then:
        a, b = rates[top]
        return Growth(dimension, top, b / a if a else float("inf"), beyond[top] / b)
    if first > 0 and then / first >= LEAST_GROWTH:
        return Growth(dimension, "", then / first, 0.0)
    return None


def _sums(counts: Counts, signal: str, mask: Mask) -> tuple[float, float]:
    bad = counts.bad.get(signal)
    return float(np.nansum(counts.total[mask])), 0.0 if bad is None else float(np.nansum(bad[mask]))


def _mean(values: Array, mask: Mask) -> float:
    seen = values[mask & np.isfinite(values)]
    return float(seen.mean()) if len(seen) else 0.0


def _variance(rate: Array, requests: Array) -> Array:
    """Of a rate, with one failure and one success added: no count is certain."""
    smooth = (rate * requests + 1) / (requests + 2)
    return np.asarray(smooth * (1 - smooth) / np.maximum(requests, 1))


def _dispersion(counts: Counts, signal: str, mask: Mask) -> float:
    """Pearson's statistic over its degrees of freedom by minute, at least 1."""
    total, bad = counts.total[mask], counts.bad.get(signal, np.zeros_like(counts.total))[mask]
    seen = np.isfinite(total) & (total > 0) & np.isfinite(bad)
    total, bad = total[seen], bad[seen]
    rate = bad.sum() / max(total.sum(), 1)
    if len(total) < 5 or not 0 < rate < 1:
        return 1.0
    return max(1.0, float((((bad - total * rate) ** 2) / (total * rate * (1 - rate))).sum() / (len(total) - 1)))


def _without(table: Array, index: int, shift: float) -> Without:
    n0, bad0, n1, bad1 = np.delete(table, index, axis=0).sum(axis=0)
    if min(n0, n1) < LEAST_REQUESTS:
        return Without.UNKNOWN
    left = (bad1 / n1 - bad0 / n0) / shift
    return Without.GONE if left < GONE else Without.HALF if left < HALF else Without.UNCHANGED
