"""Requests by size, each judged by itself: a mix that is fast enough can hide a size that is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from validators.core.inputs import Arrays
from validators.core.slo import dispersion, most_over

LONGEST = "longest"
_NAMES = ("short", "medium", "long")
#: Examples are of several classes where the largest is so many times the smallest.
_SPREAD = 2


@dataclass(frozen=True)
class ClassSummary:
    """What a run measured of one class. Latencies in ms from when requests were due, of answered ones."""

    name: str
    requests: int
    errors: int
    over: int  # slower than the objective, or failed
    goodput_per_s: float
    latency_ms: dict[str, float]  # p50, p95, p99
    over_per_window: tuple[int, ...]
    sent_per_window: tuple[int, ...]

    def as_evidence(self, *, confidence: float) -> dict[str, Any]:
        """The numbers as JSON, with the largest share over the objective that they leave possible."""
        most = most_over(self.over, self.requests, confidence=confidence, phi=dispersion(self.over_per_window))
        told = {name: value for name, value in asdict(self).items() if not name.endswith("_per_window")}
        return {**told, "over_frac_at_most": round(most, 6)}


def size_of(item: Arrays) -> int:
    """Elements of an item's inputs; of text, its bytes."""
    texts = [array for array in item.values() if array.dtype == object]
    return sum(len(text) for array in texts for text in array.ravel()) + sum(
        array.size for array in item.values() if array.dtype != object
    )


def classes_of(sizes: Sequence[int]) -> list[str]:
    """The class of each item: thirds by size, or `usual` for all where sizes hardly differ."""
    if max(sizes) < _SPREAD * min(sizes):
        return ["usual"] * len(sizes)
    places = np.searchsorted(np.quantile(sizes, [1 / 3, 2 / 3]), sizes, side="left")
    return [_NAMES[int(place)] for place in places]
