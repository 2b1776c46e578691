"""A figure that Prometheus reads: its name, its labels, and its values now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate


class FigureType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Figure:
    """A metric family. `name` has no `_total`, which the exposition format adds to counters."""

    name: str
    type: FigureType
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        return f"{self.name}_total" if self.type is FigureType.COUNTER else self.name


@dataclass(frozen=True)
class Buckets:
    """A histogram's value: cumulative counts of observations up to each of `edges`, of all, and their sum."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @classmethod
    def of(cls, values: Iterable[float], edges: Sequence[float]) -> Buckets:
        """Sorts values into buckets. An observation that equals an edge is in its bucket (`le`)."""
        counts, total = [0] * (len(edges) + 1), 0.0
        for value in values:
            counts[bisect_left(edges, value)] += 1
            total += value
        return cls(tuple(edges), tuple(accumulate(counts)), total)

    def lines(self) -> list[tuple[str, float]]:
        """(`le`, count) of each bucket, the last `+Inf`."""
        names = [*(f"{edge:g}" for edge in self.edges), "+Inf"]
        return list(zip(names, map(float, self.counts), strict=True))


#: Values of a figure by the values of its labels, in their order.
Values = Mapping[tuple[str, ...], float | Buckets]
