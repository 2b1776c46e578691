"""Golden sets: labelled examples as JSON lines, {"id", "inputs": {name: value}, "label", "slice"}."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.core.errors import Invalid
from registry.core.schema import INVALID, Json
from validators.core.contract import Tensor
from validators.core.inputs import item_arrays

Label = int | str
MAX_ITEMS = 200_000
_MOST_ERRORS = 20
_KEYS = ("id", "inputs", "label", "slice")
#: The slice of items that name none.
REST = "all"


@dataclass(frozen=True)
class GoldenItem:
    id: str
    inputs: Mapping[str, Any]
    label: Label
    slice: str = REST


def parse_golden_set(data: bytes, *, inputs: Sequence[Tensor] = ()) -> tuple[GoldenItem, ...]:
    """The items of a JSONL file, in its order. With `inputs` (a model's contract), every value is checked against them.

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
            item = _item(line, inputs)
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


def slices_of(items: Sequence[GoldenItem]) -> dict[str, int]:
    """{slice: items}, in alphabetical order."""
    return dict(sorted(Counter(item.slice for item in items).items()))


class _Mistake(Exception):
    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


def _item(line: str, inputs: Sequence[Tensor]) -> GoldenItem:
    try:
        read = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _Mistake(f"not JSON: {error}", "Write one whole JSON object per line.") from None
    if not isinstance(read, dict):
        raise _Mistake("not a JSON object", 'Write {"id": …, "inputs": {…}, "label": …, "slice": …}.')
    unknown = sorted(set(read) - set(_KEYS))
    if unknown:
        raise _Mistake(f"there is no field {unknown[0]!r}", f"Remove it; the fields are {', '.join(_KEYS)}.")
    label, values = read.get("label"), read.get("inputs")
    if not isinstance(read.get("id"), str) or not 0 < len(read["id"]) <= 200:
        raise _Mistake("id is not a text of 1 to 200 characters", "Give the item a stable id.")
    if not isinstance(values, dict) or not values:
        raise _Mistake("inputs is not an object with a value for every input", 'Write "inputs": {"text": "…"}.')
    if isinstance(label, bool) or not isinstance(label, (int, str)):
        raise _Mistake("label is neither a whole number nor text", "Write the right class, as its index or its name.")
    part = read.get("slice", REST)
    if not isinstance(part, str) or not 0 < len(part) <= 100:
        raise _Mistake("slice is not a text of 1 to 100 characters", "Name the slice, or leave it out.")
    if Json().read([read["id"], part, label if isinstance(label, str) else ""], "", []) is INVALID:
        raise _Mistake("id, label or slice holds NUL or half a character", "Use whole characters.")
    if inputs:
        try:
            item_arrays(inputs, values)
        except ValueError as error:
            raise _Mistake(
                f"{error}", "Give every input of the model's contract a value of its type and shape."
            ) from None
    return GoldenItem(read["id"], values, label, part)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _error(line: int, message: str, fix: str) -> dict[str, str]:
    return {"field": f"line {line}", "message": f"{message}.", "fix": fix}


def _invalid(errors: list[dict[str, str]]) -> Invalid:
    first = errors[0]
    says = f"The golden set cannot be used: {first['field']}: {first['message']} {first['fix']}"
    return Invalid("golden_set_invalid", says, errors=errors)
