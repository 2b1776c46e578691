"""Where two releases answer the same golden set differently, item by item: who was right before, and who is now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from validators.core.answers import in_words
from validators.core.golden_set import REST, Label

#: Characters of an item's inputs that are told.
LONGEST_TEXT: Final = 500


class How(StrEnum):
    """What became of the item: the older release was right, the newer one is, or neither."""

    LOST = "lost"
    WON = "won"
    NEITHER = "neither right"


@dataclass(frozen=True)
class Disagreement:
    """One item of the golden set, `position` of it from 0."""

    position: int
    id: str
    slice: str
    text: str
    label: Label
    old: Label | None
    new: Label | None
    how: How


@dataclass(frozen=True)
class AnswerList:
    """What one release answered to a golden set, in its order. `names`: of the classes, where the policy names them."""

    labels: Sequence[Label | None]
    names: Sequence[str] | None = None

    def at(self, position: int) -> Label | None:
        return in_words(self.labels[position], self.names)


def differing(old: AnswerList, new: AnswerList) -> list[int]:
    """The positions at which the answers differ. Raises ValueError for lists of different lengths."""
    if len(old.labels) != len(new.labels):
        raise ValueError("the two were asked different numbers of items")
    return [at for at in range(len(old.labels)) if old.at(at) != new.at(at)]


def disagreements(
    lines: Iterable[bytes], positions: Sequence[int], old: AnswerList, new: AnswerList
) -> Iterator[Disagreement]:
    """Those positions of the golden set's lines, in order. Reads no further than the last, and holds one line at a time."""
    wanted = iter(positions)
    target = next(wanted, None)
    for position, item in enumerate(_items(lines)):
        if target is None:
            return
        if position == target:
            yield _judged(position, item, old, new)
            target = next(wanted, None)


def _items(lines: Iterable[bytes]) -> Iterator[str]:
    """The lines that hold an item, as the golden set's reader counts them."""
    for number, line in enumerate(lines):
        for text in line.decode("utf-8-sig" if number == 0 else "utf-8", "replace").splitlines():
            if text.strip():
                yield text


def _judged(position: int, line: str, old: AnswerList, new: AnswerList) -> Disagreement:
    item: dict[str, Any] = json.loads(line)
    names = new.names or old.names
    label = in_words(item["label"], names)
    before, after = old.at(position), new.at(position)
    how = How.LOST if before == label else How.WON if after == label else How.NEITHER
    assert label is not None  # a golden set has none without
    return Disagreement(
        position, item["id"], item.get("slice", REST), _inputs_of(item["inputs"]), label, before, after, how
    )


def _inputs_of(inputs: Mapping[str, Any]) -> str:
    """A single text as it is, anything else as JSON; the beginning of what is long."""
    values = list(inputs.values())
    text = values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(inputs, ensure_ascii=False)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
