"""From a server's output arrays to one answer per item, in the words of the golden set's labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.contract import Tensor
from validators.core.golden_set import GoldenItem, Label


def choose_output(outputs: Sequence[Tensor], wanted: str | None) -> Tensor:
    """The output that holds the answer. Raises ValueError where it is not there, or where several are and none is named."""
    names = ", ".join(tensor.name for tensor in outputs)
    if wanted is None and len(outputs) == 1:
        return outputs[0]
    if wanted is None:
        raise ValueError(f"the release has the outputs {names}; say in golden.output which one holds the answer")
    for tensor in outputs:
        if tensor.name == wanted:
            return tensor
    raise ValueError(f"golden.output is {wanted}, and the release has the outputs {names}")


def answers_in(output: npt.NDArray[Any], count: int) -> list[Label | None]:
    """One answer for each of `count` items along the first axis; None where it is not finite.

    Text and whole numbers are answers themselves; of several scores the index of the largest is, of a single one
    whether it is at least one half. Raises ValueError for an output without `count` rows.
    """
    if output.ndim == 0 or output.shape[0] != count or output.size == 0:
        raise ValueError(f"the output has the shape {list(output.shape)} for {count} items")
    rows = output.reshape(count, -1)
    if output.dtype.kind in "OSU":
        return [_text(row[0]) for row in rows]
    if output.dtype.kind in "iub" and rows.shape[1] == 1:
        return [int(row[0]) for row in rows]
    finite = [bool(np.isfinite(row.astype(np.float64)).all()) for row in rows]
    best = rows.argmax(axis=1) if rows.shape[1] > 1 else (rows[:, 0] >= 0.5).astype(int)
    return [int(found) if good else None for found, good in zip(best, finite, strict=True)]


def in_words(answer: Label | None, names: Sequence[str] | None) -> Label | None:
    """An index as its class's name, where the policy names the classes; anything else as it is."""
    if names is None or not isinstance(answer, int):
        return answer
    return names[answer] if 0 <= answer < len(names) else answer


def expected_labels(
    items: Sequence[GoldenItem], answers: Sequence[Label | None], names: Sequence[str] | None
) -> list[Label]:
    """The labels in the answers' words. Raises ValueError where labels are text and answers are numbers, or the reverse."""
    labels = [in_words(item.label, names) for item in items]
    kinds = {type(answer) for answer in answers if answer is not None}
    if kinds and not kinds & {type(label) for label in labels}:
        raise ValueError(
            "the golden set's labels and the model's answers are of different kinds (text and class index); "
            "name the classes, in order, in golden.labels"
        )
    return [label for label in labels if label is not None]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
