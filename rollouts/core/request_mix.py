"""Do both arms get the same kind of requests? Compared by their sizes, and by their classes, which every gateway counts.

Sizes are those of all requests that were drawn. Classes are those of the decided: the split draws all classes alike, but one that is
shed more on one release is missing there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from serving.traffic.core.buckets import SIZE_EDGES

#: The counters of requests larger than each edge, among an arm's other counters.
SIZES = tuple(f"bytes_{edge}" for edge in SIZE_EDGES)
#: The counters of decided requests of each class but the default one begin with this.
OF_CLASS = "class_"

#: The mix differs when more than this share of one arm's requests would have to change their size class, and chance cannot
#: explain it: the index of validation.md 3.3, PSI > (1/n + 1/m) chi2(.99) and PSI > 0.1.
PSI_MATTERS, LEAST_MIXED = 0.1, 200
#: 99 % quantiles of chi-square by degrees of freedom. Source: any table of the distribution.
CHI2_99 = (0.0, 6.63, 9.21, 11.34, 13.28, 15.09, 16.81, 18.48, 20.09, 21.67, 23.21)


@dataclass(frozen=True)
class Mix:
    """How each arm's requests fall into classes, of size or of the model's own: counts by class, in the same order."""

    candidate: tuple[int, ...] = ()
    stable: tuple[int, ...] = ()

    @property
    def psi(self) -> float:
        """The population stability index, with half a request added to every class so that none is empty."""
        n, m = sum(self.candidate), sum(self.stable)
        if not n or not m:
            return 0.0
        classes = len(self.candidate)
        total = 0.0
        for c, b in zip(self.candidate, self.stable, strict=True):
            p, q = (c + 0.5) / (n + classes / 2), (b + 0.5) / (m + classes / 2)
            total += (p - q) * math.log(p / q)
        return total

    @property
    def differs(self) -> bool:
        n, m = sum(self.candidate), sum(self.stable)
        used = sum(1 for c, b in zip(self.candidate, self.stable, strict=True) if c or b)
        if min(n, m) < LEAST_MIXED or used < 2:
            return False
        noise = (1 / n + 1 / m) * CHI2_99[min(used - 1, len(CHI2_99) - 1)]
        return self.psi > max(noise, PSI_MATTERS)


def mix_of(candidate: Mapping[str, int], n: int, stable: Mapping[str, int], m: int, edges: tuple[str, ...]) -> Mix:
    """The classes between edges of both arms' n and m requests. Empty if they were not counted."""
    if not any(edge in candidate for edge in edges):
        return Mix()
    return Mix(classes_of(candidate, n, edges), classes_of(stable, m, edges))


def mix_of_classes(candidate: Mapping[str, int], n: int, stable: Mapping[str, int], m: int) -> Mix:
    """The classes of both arms' n and m decided requests, the default last. Empty if the model has none."""
    names = sorted(name for name in {*candidate, *stable} if name.startswith(OF_CLASS))
    if not names:
        return Mix()

    def counts(of: Mapping[str, int], every: int) -> tuple[int, ...]:
        told = [of.get(name, 0) for name in names]
        return (*told, max(0, every - sum(told)))

    return Mix(counts(candidate, n), counts(stable, m))


def classes_of(over: Mapping[str, int], n: int, edges: tuple[str, ...] = SIZES) -> tuple[int, ...]:
    """How many of n requests are in each class between edges, from counters of those that are over each of them."""
    falling = [n, *(over.get(edge, 0) for edge in edges), 0]
    return tuple(max(0, larger - smaller) for larger, smaller in pairwise(falling))
