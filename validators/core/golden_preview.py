"""What a golden set holds before it is used: labels, slices, what changed since the one before, and how much it can prove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ledger.core.errors import Invalid
from validators.core.certify import Caught, caught, judged_slices
from validators.core.contract import Tensor
from validators.core.golden_set import GoldenItem, kind_of, parse_golden_set, slices_of
from validators.core.ruler import Kind, rounding_of

ROWS: Final = 20
#: Labels and slices that are told one by one.
MOST_GROUPS: Final = 50


@dataclass(frozen=True)
class SliceFacts:
    """Items of one slice, and the least regression that is caught there."""

    slice: str
    items: int
    caught: Caught


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
    """Facts of a set that is not added yet.

    `right_within` is how far off a right answer may be by `compare`; None for labels. `own_limits`: items with one of their own.
    """

    items: int
    kind: Kind
    compare: str
    right_within: float | None
    own_limits: int
    caught: Caught
    rows: tuple[GoldenItem, ...]
    labels: tuple[dict[str, Any], ...]  # {"label", "items"}
    slices: tuple[SliceFacts, ...]
    confidence: float
    changes: Changes | None = None


def preview(
    items: Sequence[GoldenItem],
    golden: Mapping[str, Any],
    *,
    outputs: Sequence[Tensor] = (),
    before: Sequence[GoldenItem] | None = None,
) -> Preview:
    """What can be told of these items under a policy's golden section, by the statistics of the golden gate.

    `outputs` are the model's, by whose data types rounding is judged; `before` is the set that they would replace.
    """
    n = len(items)
    labels = Counter(str(item.label) for item in items if item.expected is None).most_common(MOST_GROUPS)
    sizes = slices_of(items)
    judged = judged_slices(sizes, golden)
    return Preview(
        items=n,
        kind=kind_of(items),
        compare=golden["compare"],
        right_within=_right_within(items, golden, outputs),
        own_limits=sum(item.right_within is not None for item in items),
        caught=caught(n, golden),
        rows=tuple(items[:ROWS]),
        labels=tuple({"label": label, "items": count} for label, count in labels),
        slices=tuple(
            SliceFacts(name, count, caught(count, golden, slices=max(1, judged)))
            for name, count in Counter(sizes).most_common(MOST_GROUPS)
        ),
        confidence=float(golden["confidence"]),
        changes=None if before is None else changes(items, before),
    )


def preview_lines(
    data: bytes,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    golden: Mapping[Kind, Mapping[str, Any]],
    before: bytes | None,
) -> Preview:
    """The same of JSON lines. `golden`: the policy's section for a set of each kind; `before`: the lines of the other set.

    Raises Invalid: `golden_set_invalid`.
    """
    items = parse_golden_set(data, inputs=inputs, outputs=outputs)
    try:
        others = None if before is None else parse_golden_set(before)
    except Invalid:
        others = None
    return preview(items, golden[kind_of(items)], outputs=outputs, before=others)


def changes(items: Sequence[GoldenItem], before: Sequence[GoldenItem]) -> Changes:
    """By id, in time that grows with the number of items."""
    old: Mapping[str, GoldenItem] = {item.id: item for item in before}
    shared = [(item, old[item.id]) for item in items if item.id in old]
    relabelled = sum(item.shown != other.shown for item, other in shared)
    reworded = sum(item.inputs != other.inputs for item, other in shared)
    moved = sum(item.slice != other.slice for item, other in shared)
    same = sum(item == other for item, other in shared)
    return Changes(len(items) - len(shared), len(old) - len(shared), relabelled, reworded, moved, same)


def _right_within(items: Sequence[GoldenItem], golden: Mapping[str, Any], outputs: Sequence[Tensor]) -> float | None:
    """The limit that is stated, else what rounding does to the expected outputs; stable's own spread can only widen it."""
    if kind_of(items) is Kind.LABELS:
        return None
    if golden["right_within"] is not None or golden["same_within"] is not None:
        return float(golden["same_within"] if golden["right_within"] is None else golden["right_within"])
    types = [tensor.data_type for tensor in outputs if tensor.name in (items[0].expected or {})]
    return rounding_of(golden["compare"], types or ["FP32"])
