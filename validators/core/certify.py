"""What a golden set can tell before anything is asked: the least regression that its gate would catch, over all and by slice.

Of every kind of set a row is right or it is not, so the same counts hold for labels, tensors and texts. A regression is the
share of rows that a release loses, and wins none back, against stable or against what is expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from validators.core import beta, compare
from validators.core.compare import Paired

#: A regression is caught if the gate fails in so many of all runs.
POWER: Final = 0.9


@dataclass(frozen=True)
class Caught:
    """The least share of rows that, once lost, fail the gate in nine runs of ten: against stable, and where there is none.

    None where no regression would, since too few rows are judged or nothing is asked.
    """

    against_stable: float | None
    without_stable: float | None


def caught(n: int, golden: Mapping[str, Any], *, slices: int = 0) -> Caught:
    """What `n` rows catch under a policy's golden section: of the whole set, or of one slice of so many that are judged.

    A slice must be worse beside all the others, so each is counted with what Holm's procedure asks of the worst of them.
    """
    if not n or (slices and n < golden["min_slice_items"]):
        return Caught(None, None)
    alpha = (1 - float(golden["confidence"])) / max(1, slices)
    accuracy = golden["min_slice_accuracy"] if slices else golden["min_accuracy"]
    agreement = golden["min_slice_agreement"] if slices else golden["min_agreement"]
    drop = golden["max_slice_drop"] if slices else golden["max_accuracy_drop"]
    least = [_lost_below(n, limit, golden["rule"], alpha, bool(slices)) for limit in (accuracy, agreement)]
    against = [one for one in (*least, _lost_for_drop(n, drop, golden["rule"], alpha)) if one is not None]
    return Caught(_share(n, min(against, default=None)), _share(n, least[0]))


def judged_slices(slices: Mapping[str, int], golden: Mapping[str, Any]) -> int:
    """How many slices have rows enough to be judged."""
    return sum(items >= golden["min_slice_items"] for items in slices.values())


def _share(n: int, lost: int | None) -> float | None:
    """The share of lost rows at which at least `lost` of `n` are lost in nine runs of ten; None where that is never."""
    return None if lost is None or lost > n else beta.quantile(POWER, lost, n - lost + 1)


def _lost_below(n: int, limit: float | None, rule: str, alpha: float, is_slice: bool) -> int | None:
    """The least number of lost rows that fails a share: by its value, by its interval, or in a slice by its p-value."""
    if limit is None:
        return None

    def fails(lost: int) -> bool:
        is_below = n - lost < limit * n
        if is_slice:
            return is_below and compare.below_p(n - lost, n, limit) <= alpha
        return is_below and (rule != "certified" or compare.share_of(n - lost, n, confidence=1 - alpha).high < limit)

    return _least(n, fails)


def _lost_for_drop(n: int, limit: float | None, rule: str, alpha: float) -> int | None:
    """The least number of lost rows that fails a drop, all rows having been right before."""
    if limit is None:
        return None
    margin = limit if rule == "certified" else 0.0

    def fails(lost: int) -> bool:
        return lost > limit * n and compare.worse_p(Paired(n, n - lost, lost, 0), margin) <= alpha

    return _least(n, fails)


def _least(n: int, fails: Any) -> int | None:
    """The least of 1 to `n` for which it is true; it stays true from there on. None where it never is."""
    low, high = 1, n + 1
    while low < high:
        middle = (low + high) // 2
        if fails(middle):
            high = middle
        else:
            low = middle + 1
    return low if low <= n else None
