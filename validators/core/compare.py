"""Paired comparison of two releases on the same examples: how often they agree, and whether the new one is worse.

Everything here takes what both releases answered to the same items, in the same order. Two accuracies side by side hide
most of what changed; which items flipped does not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from validators.core import beta


@dataclass(frozen=True)
class Share:
    """`count` of `n`, with a two-sided confidence interval [low, high]."""

    count: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The measured share; nan for none at all."""
        return self.count / self.n if self.n else math.nan


@dataclass(frozen=True)
class Paired:
    """Items by who was right. `lost` were right with the baseline and are wrong now; `won` the other way round."""

    n: int
    both_right: int
    lost: int
    won: int

    @property
    def drop(self) -> float:
        """Baseline accuracy minus candidate accuracy, -1 … 1."""
        return (self.lost - self.won) / self.n if self.n else 0.0


def share_of(count: int, n: int, *, confidence: float = 0.95) -> Share:
    """A share with its exact two-sided interval. Source: Clopper & Pearson 1934; beta quantiles."""
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else beta.quantile(tail, count, n - count + 1)
    high = 1.0 if count == n else beta.quantile(1 - tail, count + 1, n - count)
    return Share(count, n, low, high)


def agreement(candidate: Sequence[Hashable], baseline: Sequence[Hashable], *, confidence: float = 0.95) -> Share:
    """How often two releases give the same answer. Raises ValueError for lists of different lengths."""
    return share_of(
        sum(a == b for a, b in zip(candidate, baseline, strict=True)), len(candidate), confidence=confidence
    )


def pair(candidate: Sequence[Hashable], baseline: Sequence[Hashable], labels: Sequence[Hashable]) -> Paired:
    """Who was right on each item, counted. Raises ValueError for lists of different lengths."""
    rights = [(c == label, b == label) for c, b, label in zip(candidate, baseline, labels, strict=True)]
    return Paired(
        n=len(rights),
        both_right=sum(c and b for c, b in rights),
        lost=sum(b and not c for c, b in rights),
        won=sum(c and not b for c, b in rights),
    )


def tango_z(paired: Paired, margin: float) -> float:
    """The score statistic of "the candidate is worse by `margin` or more": the larger, the more surely it is not.

    Non-inferior at level alpha when it exceeds z(1 - alpha); with margin 0 it is McNemar's statistic. 0 without evidence.
    Source: Tango, Statistics in Medicine 17 (1998) 891.
    """
    n, b, c, d = paired.n, paired.lost, paired.won, -margin
    if n == 0:
        return 0.0
    a1 = -((b + c) * (1 - d) - 2 * n * d + 2 * c * d)
    a0 = -b * d * (1 - d)
    q = (-a1 + math.sqrt(max(0.0, a1 * a1 - 8 * n * a0))) / (4 * n)
    variance = n * (2 * q + d - d * d)
    numerator = c - b - n * d
    if variance <= 1e-12:
        return 0.0 if abs(numerator) < 1e-12 else math.copysign(math.inf, numerator)
    return numerator / math.sqrt(variance)


def worse_p(paired: Paired, margin: float) -> float:
    """The p-value, one-sided, of "the drop is at most `margin`": the smaller, the more surely it is worse than that."""
    return NormalDist().cdf(tango_z(paired, margin))


def below_p(count: int, n: int, limit: float) -> float:
    """The p-value, one-sided and exact, of "the share is at least `limit`": the smaller, the more surely it is below."""
    return 1.0 if count >= n or limit <= 0 else beta.incomplete(1 - limit, n - count, count + 1)


def holm(p_values: Sequence[float], *, alpha: float) -> list[bool]:
    """Which hypotheses are rejected such that any of them is rejected wrongly with a chance of `alpha` at most.

    However many there are and however they hang together. Source: Holm, Scandinavian Journal of Statistics 6 (1979) 65.
    """
    rejected = [False] * len(p_values)
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        if p_values[at] > alpha / (len(p_values) - rank):
            break
        rejected[at] = True
    return rejected


def is_not_worse(paired: Paired, margin: float, *, confidence: float = 0.95) -> bool:
    """Whether the drop is shown to stay below `margin`, one-sided."""
    return tango_z(paired, margin) > NormalDist().inv_cdf(confidence)


def drop_interval(paired: Paired, *, confidence: float = 0.95) -> tuple[float, float]:
    """The drops that these answers do not contradict, two-sided, to .0001. Source: Tango's score statistic, inverted."""
    edge = NormalDist().inv_cdf(1 - (1 - confidence) / 2)
    return _margin_where(paired, -edge), _margin_where(paired, edge)


def _margin_where(paired: Paired, wanted: float) -> float:
    """The margin at which the statistic, which rises with it, has this value."""
    low, high = -0.9999, 0.9999
    while high - low > 1e-5:
        middle = (low + high) / 2
        if tango_z(paired, middle) < wanted:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 4)


def certifiable_margin(paired: Paired, *, confidence: float = 0.95) -> float:
    """The smallest drop that this many items can rule out with these answers, to .0001; 1 where none can.

    Shown beside a limit, it says at once whether the golden set is large enough for it.
    """
    low, high = paired.drop, 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        if is_not_worse(paired, middle, confidence=confidence):
            high = middle
        else:
            low = middle
    return max(0.0, round(high, 4))


def by_slice(slices: Sequence[str], *columns: Sequence[Hashable]) -> dict[str, list[list[Hashable]]]:
    """The same columns, cut by slice; slices in alphabetical order."""
    cut: dict[str, list[list[Hashable]]] = {name: [[] for _ in columns] for name in sorted(set(slices))}
    for i, name in enumerate(slices):
        for column, values in zip(cut[name], columns, strict=True):
            column.append(values[i])
    return cut
