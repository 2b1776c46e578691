"""Golden sets: examples with what is expected of them, as JSON lines.

{"id", "inputs": {name: value}, "slice"} with either "label", a class, or "expected": {output: value}, numbers or texts, and
then "right_within", should an item have a limit of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ledger.core.errors import Invalid
from registry.core.schema import INVALID, Json
from validators.core.contract import Tensor
from validators.core.inputs import item_arrays
from validators.core.ruler import Kind

Label = int | str
MAX_ITEMS = 200_000
#: Of one set. Every list of a model's sets shows them.
MOST_SLICES = 1000
_MOST_ERRORS = 20
_MOST_OUTPUTS = 16
_KEYS = ("id", "inputs", "label", "expected", "right_within", "slice")
#: The slice of items that name none.
REST = "all"


@dataclass(frozen=True)
class GoldenItem:
    """One example. It has a label, or else what is expected of its outputs by name; `right_within` is its own limit, if it has one."""

    id: str
    inputs: Mapping[str, Any]
    label: Label | None = None
    slice: str = REST
    expected: Mapping[str, Any] | None = None
    right_within: float | None = None

    @property
    def kind(self) -> Kind:
        if self.expected is None:
            return Kind.LABELS
        return Kind.TEXT if all(isinstance(value, str) for value in self.expected.values()) else Kind.TENSORS

    @property
    def shown(self) -> Any:
        """What a person is shown as the right answer."""
        return self.label if self.expected is None else dict(self.expected)


def parse_golden_set(
    data: bytes, *, inputs: Sequence[Tensor] = (), outputs: Sequence[Tensor] = ()
) -> tuple[GoldenItem, ...]:
    """The items of a JSONL file, in its order, all of one kind. Values are checked against a model's contract where it is given.

    Raises:
        Invalid: `golden_set_invalid`; facts["errors"] name the lines as {field: "line 7", message, fix}, the first 20.
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise _invalid(
            [_error(data[: error.start].count(b"\n") + 1, "the text is not UTF-8", "Save the file as UTF-8.")]
        ) from None
    items: list[GoldenItem] = []
    errors: list[dict[str, str]] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = _item(line, inputs, outputs)
            if items and (mistake := _unlike(items[0], item)):
                raise mistake
            if item.id in seen:
                raise _Mistake(
                    f"the id {item.id!r} is that of line {seen[item.id]}", "Give every item an id of its own."
                )
        except _Mistake as mistake:
            errors.append(_error(number, mistake.message, mistake.fix))
            if len(errors) >= _MOST_ERRORS:
                break
            continue
        seen[item.id] = number
        items.append(item)
    if not errors and not items:
        errors.append(_error(1, "the file holds no item", "Write one JSON object per line."))
    if len(items) > MAX_ITEMS:
        errors.append(_error(MAX_ITEMS, f"{len(items)} items are too many", f"Keep to {MAX_ITEMS}."))
    if errors:
        raise _invalid(errors)
    return tuple(items)


def sizes_of(data: bytes, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, dict[str, int]]:
    """(items, items of each slice) of a set that is to be kept.

    Raises:
        Invalid: `golden_set_invalid`, also for more slices than MOST_SLICES.
    """
    items = parse_golden_set(data, inputs=inputs, outputs=outputs)
    slices = slices_of(items)
    if len(slices) > MOST_SLICES:
        raise _invalid([_error(1, f"{len(slices)} slices are too many", f"Keep to {MOST_SLICES}.")])
    return len(items), slices


def kind_of(items: Sequence[GoldenItem]) -> Kind:
    """The kind of all of them; labels for none."""
    return items[0].kind if items else Kind.LABELS


def kind_of_lines(data: bytes) -> Kind:
    """The kind of a set that was checked before, by its first item."""
    return kind_of(parse_golden_set(next(line for line in data.splitlines() if line.strip())))


def slices_of(items: Sequence[GoldenItem]) -> dict[str, int]:
    """{slice: items}, in alphabetical order."""
    return dict(sorted(Counter(item.slice for item in items).items()))


class _Mistake(Exception):
    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


def _unlike(first: GoldenItem, item: GoldenItem) -> _Mistake | None:
    """One set is of one kind, and its items expect the same outputs."""
    if first.kind is not item.kind:
        fix = "Make a golden set for each kind: label, or expected with numbers, or with texts."
        return _Mistake(f"the item is of the kind {item.kind}, and the first of the kind {first.kind}", fix)
    if first.expected is None or item.expected is None or list(first.expected) == list(item.expected):
        return None
    wanted = ", ".join(first.expected)
    return _Mistake(f"expected is not {wanted}, as in the first item", "State the same outputs, in one order.")


def _item(line: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> GoldenItem:
    try:
        read = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _Mistake(f"not JSON: {error}", "Write one whole JSON object per line.") from None
    if not isinstance(read, dict):
        raise _Mistake("not a JSON object", 'Write {"id": …, "inputs": {…}, "label": …, "slice": …}.')
    unknown = sorted(set(read) - set(_KEYS))
    if unknown:
        raise _Mistake(f"there is no field {unknown[0]!r}", f"Remove it; the fields are {', '.join(_KEYS)}.")
    values = read.get("inputs")
    if not isinstance(read.get("id"), str) or not 0 < len(read["id"]) <= 200:
        raise _Mistake("id is not a text of 1 to 200 characters", "Give the item a stable id.")
    if not isinstance(values, dict) or not values:
        raise _Mistake("inputs is not an object with a value for every input", 'Write "inputs": {"text": "…"}.')
    label, expected, right_within = _right_answer(read, outputs)
    part = read.get("slice", REST)
    if not isinstance(part, str) or not 0 < len(part) <= 100:
        raise _Mistake("slice is not a text of 1 to 100 characters", "Name the slice, or leave it out.")
    if Json().read([read["id"], part, label if isinstance(label, str) else "", *(expected or ())], "", []) is INVALID:
        raise _Mistake("id, label or slice holds NUL or half a character", "Use whole characters.")
    if inputs:
        try:
            item_arrays(inputs, values)
        except ValueError as error:
            raise _Mistake(
                f"{error}", "Give every input of the model's contract a value of its type and shape."
            ) from None
    return GoldenItem(read["id"], values, label, part, expected, right_within)


def _right_answer(
    read: Mapping[str, Any], outputs: Sequence[Tensor]
) -> tuple[Label | None, Mapping[str, Any] | None, float | None]:
    """(label, expected, right_within) of one item."""
    label, expected = read.get("label"), read.get("expected")
    if expected is None:
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            raise _Mistake(
                "label is neither a whole number nor text",
                "Write the right class, as its index or its name, or what is expected of each output in expected.",
            )
        if "right_within" in read:
            raise _Mistake("right_within stands beside a label", "A label is right or wrong: leave it out.")
        return label, None, None
    if "label" in read:
        raise _Mistake("the item has a label and expected", "State one of the two.")
    is_texts = isinstance(expected, dict) and all(isinstance(value, str) for value in expected.values())
    if not isinstance(expected, dict) or not 0 < len(expected) <= _MOST_OUTPUTS or not (is_texts or _numbers(expected)):
        raise _Mistake(
            f"expected is no object with numbers, or with one text, for each of 1 to {_MOST_OUTPUTS} outputs",
            'Write "expected": {"embedding": [0.1, …]}, or {"answer": "…"}.',
        )
    own = read.get("right_within")
    if own is not None and (isinstance(own, bool) or not isinstance(own, (int, float)) or not 0 <= own < inf):
        raise _Mistake(
            "right_within is not a number of at least 0", "Write how far off an answer may be, or leave it out."
        )
    _check_expected(expected, outputs)
    return None, expected, None if own is None else float(own)


def _numbers(expected: Mapping[str, Any]) -> bool:
    """Whether each value is a number, or an array of them. Depth is bounded by the reader."""
    for value in expected.values():
        try:
            array = np.asarray(value)
        except ValueError:
            return False
        if array.size and (array.dtype.kind not in "iuf" or not np.isfinite(array).all()):
            return False
    return True


def _check_expected(expected: Mapping[str, Any], outputs: Sequence[Tensor]) -> None:
    if not outputs:
        return
    known = {tensor.name: tensor for tensor in outputs}
    unknown = sorted(set(expected) - set(known))
    if unknown:
        raise _Mistake(f"there is no output {unknown[0]}", f"The outputs are {', '.join(known)}.")
    try:
        item_arrays([known[name] for name in expected], expected)
    except ValueError as error:
        raise _Mistake(f"{error}", "Expect of every output a value of its type and shape in the contract.") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _error(line: int, message: str, fix: str) -> dict[str, str]:
    return {"field": f"line {line}", "message": f"{message}.", "fix": fix}


def _invalid(errors: list[dict[str, str]]) -> Invalid:
    first = errors[0]
    says = f"The golden set cannot be used: {first['field']}: {first['message']} {first['fix']}"
    return Invalid("golden_set_invalid", says, errors=errors)
