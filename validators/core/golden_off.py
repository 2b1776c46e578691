"""How far off the answers to a golden set are, in a few numbers, and which items are the worst."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from validators.core.golden_set import GoldenItem

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "largest": 1.0}
_WORST: Final = 10


def off_by(distances: Sequence[float]) -> dict[str, float]:
    """Quantiles of the distances: the smallest that so many of them reach or stay below; inf where an answer is missing."""
    ordered = sorted(distances)
    return {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in _QUANTILES.items()}


def worst_rows(items: Sequence[GoldenItem], rights: Sequence[bool], distances: Sequence[float]) -> list[dict[str, Any]]:
    """The ten items with the farthest answers, of those that are not right."""
    wrong = [at for at, is_right in enumerate(rights) if not is_right]
    wrong.sort(key=lambda at: -distances[at])
    return [{"id": items[at].id, "slice": items[at].slice, "off_by": distances[at]} for at in wrong[:_WORST]]
