"""Arrays for inference requests: from golden items or a release's warm-up, and as large as is declared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.servers.core.made_up import NUMPY_TYPES, largest_sizes
from validators.core.contract import Tensor

Arrays = dict[str, npt.NDArray[Any]]
#: A word that is one token to nearly every tokenizer, and how many tokens most of them add at the ends of a text.
_ONE_TOKEN, _ADDED_TOKENS = b"the", 4


def item_arrays(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> Arrays:
    """One item as arrays without a batch axis. A scalar stands for a tensor of one element.

    Raises ValueError, naming the input, for a missing or unknown input and for values that do not fit it.
    """
    unknown = sorted(set(values) - {tensor.name for tensor in tensors})
    if unknown:
        raise ValueError(f"there is no input {', '.join(unknown)}; the inputs are {', '.join(t.name for t in tensors)}")
    return {tensor.name: _array(tensor, values) for tensor in tensors}


def stack(items: Sequence[Arrays], *, has_batch_axis: bool) -> Arrays:
    """Items of equal shapes as one request. Raises ValueError for several items where there is no batch axis."""
    if not has_batch_axis:
        if len(items) != 1:
            raise ValueError("a model without a batch axis takes one item per request")
        return dict(items[0])
    return {name: np.stack([item[name] for item in items]) for name in items[0]}


def filled(array: npt.NDArray[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    """An array of this shape with the values of another over and over, as of `np.resize`, which is slow for what grows much."""
    size, done = math.prod(shape), min(array.size, math.prod(shape))
    out = np.zeros(size, dtype=array.dtype)
    out[:done] = array.ravel()[:done]
    while 0 < done < size:
        more = min(done, size - done)
        out[done : done + more] = out[:more]
        done += more
    return out.reshape(shape)


def longest_item(
    tensors: Sequence[Tensor], limits: Mapping[str, Any], example: Arrays
) -> tuple[Arrays, dict[str, Any]]:
    """(an item as large as the envelope's `limits` let it be, and no larger; those limits that made it so, by name).

    A limit is left alone where the item might become one that no user sends. `max_input_dims` enlarges, with the example's
    values over and over, where every input with a dimension of any size is declared: they may have to fit each other.
    `max_input_tokens` makes a text of so many tokens, less a few that tokenizers add, where it is plain which input is the text.
    """
    longest, used = dict(example), {}
    dims = {tensor.name: tensor.dims for tensor in tensors}
    for name, largest in largest_sizes(tensors, limits).items():
        sizes = [size if own == -1 else own for own, size in zip(dims[name], largest, strict=True)]
        longest[name] = filled(example[name], sizes)
        used["max_input_dims"] = limits["max_input_dims"]
    text, tokens = text_input(tensors), limits.get("max_input_tokens")
    if text and tokens and longest[text].size == 1:
        words = b" ".join([_ONE_TOKEN] * max(1, int(tokens) - _ADDED_TOKENS))
        longest[text] = np.full(longest[text].shape, words, dtype=object)
        used["max_input_tokens"] = tokens
    return longest, used


def with_longer_text(
    tensors: Sequence[Tensor], limits: Mapping[str, Any], example: Arrays, more_bytes: int
) -> Arrays | None:
    """The example with a text that has some `more_bytes`, as many as the envelope's `max_input_tokens` lets it have at most.

    None where that is not declared, where it is not plain which input is the text, or where the text would not grow.
    """
    text, tokens = text_input(tensors), limits.get("max_input_tokens")
    if not text or not tokens or example[text].size != 1:
        return None
    own = len(example[text].item())
    words = min((own + more_bytes + 1) // (len(_ONE_TOKEN) + 1), int(tokens) - _ADDED_TOKENS)
    longer = b" ".join([_ONE_TOKEN] * words)
    return {**example, text: np.full(example[text].shape, longer, dtype=object)} if len(longer) > own else None


def text_input(tensors: Sequence[Tensor]) -> str | None:
    """The only input of bytes, or the one among several that is called `text`; None where neither is there."""
    names = [tensor.name for tensor in tensors if tensor.data_type == "BYTES"]
    return names[0] if len(names) == 1 else "text" if "text" in names else None


def as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Texts as the bytes that are sent; numbers as they are. Raises TypeError for an object that is no text."""
    if array.dtype != object:
        return array
    flat = [_text(value) for value in array.ravel()]
    return np.array([*flat, None], dtype=object)[:-1].reshape(array.shape)


def _array(tensor: Tensor, values: Mapping[str, Any]) -> npt.NDArray[Any]:
    if tensor.name not in values:
        raise ValueError(f"the input {tensor.name} has no value")
    kind = NUMPY_TYPES.get(tensor.data_type, "object")
    try:
        if kind == "object":
            array = as_bytes(np.array(values[tensor.name], dtype=object))
        else:
            array = _numbers(np.asarray(values[tensor.name]), np.dtype(kind))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the value of {tensor.name} is not {tensor.data_type}: {error}") from None
    return _shaped(tensor, array)


def _numbers(given: npt.NDArray[Any], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """As this type. Raises ValueError for a number that it cannot hold: numpy would make another of it."""
    is_float = kind.kind == "f"
    with np.errstate(over="ignore", invalid="ignore"):
        made = given.astype(kind, casting="same_kind" if is_float else "unsafe")
    if given.dtype.kind in "iuf":
        wrong = np.isinf(made) & np.isfinite(given) if is_float else made != given
        if wrong.any():
            raise ValueError(f"{given[wrong].flat[0]} would become {made[wrong].flat[0]}")
    return made


def _shaped(tensor: Tensor, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.ndim == 0 and all(d in (1, -1) for d in tensor.dims):
        return array.reshape((1,) * len(tensor.dims))
    fits = array.ndim == len(tensor.dims) and all(w in (-1, h) for h, w in zip(array.shape, tensor.dims, strict=True))
    if not fits:
        raise ValueError(
            f"the value of {tensor.name} has the shape {list(array.shape)}, declared is {list(tensor.dims)}"
        )
    return array


def _text(value: Any) -> bytes:
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{value!r} is not text")
    return value.encode() if isinstance(value, str) else value
