"""What a golden set holds before it is used: labels, slices, what changed since the one before, and how much it can prove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from validators.core import compare
from validators.core.compare import Paired, Share
from validators.core.golden_set import GoldenItem

ROWS: Final = 20
#: Accuracies that the intervals are told for, and shares of answers that flip each way between two releases.
ACCURACIES: Final = (0.7, 0.8, 0.9, 0.95, 0.99)
FLIPS: Final = (0.0, 0.01, 0.05)
#: Labels and slices that are told one by one.
MOST_GROUPS: Final = 50


@dataclass(frozen=True)
class SliceFacts:
    """One slice: how many items, and the interval of an accuracy of 90 % on it."""

    name: str
    items: int
    at_90: Share


@dataclass(frozen=True)
class Changes:
    """What differs from another set, by the items' ids."""

    added: int
    removed: int
    relabelled: int
    reworded: int  # other inputs under the same id
    moved: int  # to another slice
    same: int


@dataclass(frozen=True)
class Preview:
    """`certain`: (accuracy measured, its interval); `drops`: (share of answers that flip each way, smallest drop ruled out)."""

    items: int
    rows: tuple[GoldenItem, ...]
    labels: tuple[tuple[str, int], ...]
    slices: tuple[SliceFacts, ...]
    certain: tuple[tuple[float, Share], ...]
    drops: tuple[tuple[float, float], ...]
    confidence: float
    changes: Changes | None = None


def preview(items: Sequence[GoldenItem], *, confidence: float, before: Sequence[GoldenItem] | None = None) -> Preview:
    """What can be told of these items. `before`: the set that they would replace. Statistics are those of the golden gate."""
    n = len(items)
    labels = Counter(str(item.label) for item in items).most_common(MOST_GROUPS)
    slices = Counter(item.slice for item in items).most_common(MOST_GROUPS)
    return Preview(
        items=n,
        rows=tuple(items[:ROWS]),
        labels=tuple(labels),
        slices=tuple(SliceFacts(name, count, _at(0.9, count, confidence)) for name, count in slices),
        certain=tuple((accuracy, _at(accuracy, n, confidence)) for accuracy in ACCURACIES),
        drops=tuple((flips, _smallest_drop(flips, n, confidence)) for flips in FLIPS),
        confidence=confidence,
        changes=None if before is None else changes(items, before),
    )


def changes(items: Sequence[GoldenItem], before: Sequence[GoldenItem]) -> Changes:
    """By id, in time that grows with the number of items."""
    old: Mapping[str, GoldenItem] = {item.id: item for item in before}
    shared = [(item, old[item.id]) for item in items if item.id in old]
    relabelled = sum(item.label != other.label for item, other in shared)
    reworded = sum(item.inputs != other.inputs for item, other in shared)
    moved = sum(item.slice != other.slice for item, other in shared)
    same = sum(item == other for item, other in shared)
    return Changes(len(items) - len(shared), len(old) - len(shared), relabelled, reworded, moved, same)


def as_json(found: Preview) -> dict[str, Any]:
    """The preview as the API answers it."""
    told = found.changes
    return {
        "items": found.items,
        "rows": [{"id": i.id, "inputs": dict(i.inputs), "label": i.label, "slice": i.slice} for i in found.rows],
        "labels": [{"label": label, "items": count} for label, count in found.labels],
        "slices": [
            {"slice": one.name, "items": one.items, "low": round(one.at_90.low, 6), "high": round(one.at_90.high, 6)}
            for one in found.slices
        ],
        "confidence": found.confidence,
        "certain": [
            {"accuracy": accuracy, "low": round(share.low, 6), "high": round(share.high, 6)}
            for accuracy, share in found.certain
        ],
        "drops": [{"flips_frac": flips, "smallest_drop": drop} for flips, drop in found.drops],
        "changes": None
        if told is None
        else {name: getattr(told, name) for name in ("added", "removed", "relabelled", "reworded", "moved", "same")},
    }


def _at(accuracy: float, n: int, confidence: float) -> Share:
    return compare.share_of(round(accuracy * n), n, confidence=confidence)


def _smallest_drop(flips: float, n: int, confidence: float) -> float:
    """What `smallest_certifiable_drop` of the gate would be, were this share of answers lost and as many won."""
    flipped = min(round(flips * n), n // 2)
    return compare.certifiable_margin(Paired(n, n - 2 * flipped, flipped, flipped), confidence=confidence)
