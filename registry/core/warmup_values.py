"""Whether an input can take its value in `serving.warmup`: kind, range and shape.

Stricter than the server that warms up: numpy would cut 1.5 to 1 and read "5" as 5, and the mistake would stay unseen.
`tests/core/test_warmup_values.py` compares both, so that no value that passes here fails at the first start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_INTEGERS: Final[dict[str, tuple[int, int]]] = {
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)},
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
    # JSON holds no larger whole number exactly, and `schema.Json` refuses it.
    "INT64": (-(2**53) + 1, 2**53 - 1),
    "UINT64": (0, 2**53 - 1),
}
#: The largest finite number of each. Source: IEEE 754.
_FLOATS: Final[dict[str, float]] = {"FP16": 65504.0, "FP32": 3.4028234663852886e38, "FP64": 1.7976931348623157e308}
_EXAMPLES: Final = {"BOOL": "true or false", "BYTES": 'text in quotes, such as "warm-up"'}


def value_problem(value: Any, tensor: Mapping[str, Any], batch_size: int | None) -> tuple[str, str] | None:
    """(the mistake, the fix) of the value of one input; None if the input takes it, or if it is null.

    `batch_size`: 0 for a model without a batch axis, None if it is not known; no shape is judged then. A single number or text
    stands for a whole item.
    """
    data_type, dims = tensor["data_type"], tensor["dims"] or [1]  # as requests have it: `serving.sent_dims`
    if value is None or data_type == "BF16":  # the data type itself is refused: `serving.lint`
        return None
    shape = _shape(value)
    if shape is None:
        return "its lists are not of one length.", "Write lists of equal lengths, one level for each dimension."
    wrong = next((one for one in _elements(value) if not _fits(one, data_type)), _NOTHING)
    if wrong is not _NOTHING:
        return f"{_shown(wrong)} is not {data_type}.", f"Write {_what(data_type)}."
    if batch_size is None or sent_shape(shape, dims, batch_size) is not None:
        return None
    whole = [batch_size, *dims] if batch_size else list(dims)
    item = f" or {list(dims)} for one item" if batch_size else ""
    return f"it has the shape {list(shape)}.", f"Write {whole}{item}; -1 is any size. A single value fills an item."


def sent_shape(shape: Sequence[int], dims: Sequence[int], batch_size: int) -> tuple[int, ...] | None:
    """The shape of the tensor that a value of `shape` becomes; None if the input does not take the value.

    `dims` as `serving.sent_dims` returns them; `batch_size` 0 for a model without a batch axis. A value is the whole batch, an
    item that is repeated, one number for each item, or a single value that fills everything; a free dimension is then 1.
    """
    batch = (batch_size,) if batch_size else ()
    filled = (*batch, *(1 if size == -1 else size for size in dims))
    if _equal(shape, (*batch, *dims)):
        return tuple(shape)
    if _equal(shape, dims):
        return (*batch, *shape)
    is_one_each = batch and tuple(shape) == batch and filled[1:] == (1,) * len(dims)
    return filled if shape == () or is_one_each else None


_NOTHING: Final = object()


def _what(data_type: str) -> str:
    if data_type in _INTEGERS:
        least, most = _INTEGERS[data_type]
        return f"whole numbers from {least} to {most}"
    if data_type in _FLOATS:
        return f"numbers from -{_FLOATS[data_type]:g} to {_FLOATS[data_type]:g}"
    return _EXAMPLES[data_type]


def _fits(value: Any, data_type: str) -> bool:
    if data_type == "BYTES":
        return isinstance(value, str)
    if data_type == "BOOL" or isinstance(value, bool):
        return data_type == "BOOL" and isinstance(value, bool)
    if not isinstance(value, int | float):
        return False
    if data_type in _INTEGERS:
        least, most = _INTEGERS[data_type]
        return value == int(value) and least <= value <= most
    return -_FLOATS[data_type] <= value <= _FLOATS[data_type]


def _shape(value: Any) -> tuple[int, ...] | None:
    """The lengths of the lists from outside in; None if lists of one level differ."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ()
    inner = {_shape(one) for one in value}
    if len(inner) > 1 or None in inner:
        return None
    return (len(value), *(next(iter(inner)) or ())) if inner else (0,)


def _elements(value: Any) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value]
    return [element for one in value for element in _elements(one)]


def _equal(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
