"""Answers that are outputs themselves, numbers or texts: which outputs are judged, and what they hold for each item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.contract import Tensor
from validators.core.golden_set import GoldenItem
from validators.core.inputs import item_arrays

#: What one item was answered: its outputs by name, 64-bit floats or a text.
Row = dict[str, Any]


def judged_outputs(items: Sequence[GoldenItem], outputs: Sequence[Tensor], wanted: str | None) -> tuple[Tensor, ...]:
    """The outputs that the items expect, in their order; `wanted` alone where it is stated.

    Raises ValueError where the set or the release lacks one, or where a text is expected of numbers or the reverse.
    """
    expected = items[0].expected or {}
    names = list(expected) if wanted is None else [wanted]
    known = {tensor.name: tensor for tensor in outputs}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no output {name}; the outputs are {', '.join(known)}")
        if name not in expected:
            raise ValueError(f"golden.output is {name}, and the golden set expects {', '.join(expected)}")
        if isinstance(expected[name], str) != (known[name].data_type == "BYTES"):
            raise ValueError(f"output {name} is {known[name].data_type}, and the golden set expects another kind")
    return tuple(known[name] for name in names)


def expected_rows(items: Sequence[GoldenItem], outputs: Sequence[Tensor]) -> list[Row]:
    """What each item expects of these outputs. Raises ValueError, naming the item, for what does not fit them."""
    rows = []
    for item in items:
        wanted = {tensor.name: (item.expected or {})[tensor.name] for tensor in outputs}
        try:
            rows.append({name: _row(array) for name, array in item_arrays(outputs, wanted).items()})
        except ValueError as error:
            raise ValueError(f"item {item.id}: {error}") from None
    return rows


def rows_in(outputs: Mapping[str, npt.NDArray[Any]], names: Sequence[str], count: int) -> list[Row | None]:
    """One row for each of `count` items along the first axis; None where a number of it is not finite.

    Raises KeyError for an output that is missing, ValueError for one without `count` rows or with several texts in one.
    """
    for name in names:
        if outputs[name].ndim == 0 or outputs[name].shape[0] != count:
            raise ValueError(f"the output {name} has the shape {list(outputs[name].shape)} for {count} items")
    rows = [{name: _row(outputs[name][at]) for name in names} for at in range(count)]
    return [row if all(map(_is_finite, row.values())) else None for row in rows]


def _row(array: npt.NDArray[Any]) -> Any:
    if array.dtype.kind not in "OSU":
        return array.astype(np.float64)
    if array.size != 1:
        raise ValueError(f"an item has {array.size} texts, and one can be compared")
    value = array.ravel()[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, str) or bool(np.isfinite(value).all())
