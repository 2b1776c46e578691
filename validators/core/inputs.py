"""Arrays for inference requests: from golden items, from a release's warm-up, or made up from the declared inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.contract import NUMPY_TYPES, Tensor

Arrays = dict[str, npt.NDArray[Any]]
#: Text for a made-up request.
SAMPLE_TEXT = "The quick brown fox jumps over the lazy dog."
#: Of the largest sizes that are declared, what made-up items have, a middling one first; the largest is asked beside them.
_SHARES = (1 / 2, 1 / 8, 7 / 8, 1 / 4, 3 / 4, 3 / 8, 5 / 8)
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


def same_shapes(first: Arrays, second: Arrays) -> bool:
    """Whether two items may share a batch."""
    return all(first[name].shape == second[name].shape for name in first)


def made_up_items(tensors: Sequence[Tensor], limits: Mapping[str, Any], *, most: int) -> list[Arrays]:
    """Plausible items for declared inputs, of several sizes where the envelope's `limits` say how large they may be; one at least."""
    is_one = not _largest_sizes(tensors, limits) and not limits.get("input_values")
    shares = _SHARES[: 1 if is_one else most]
    return [made_up_item(tensors, limits, seed=at, share=share) for at, share in enumerate(shares)]


def made_up_item(
    tensors: Sequence[Tensor], limits: Mapping[str, Any] | None = None, *, seed: int, share: float = _SHARES[0]
) -> Arrays:
    """A plausible item for declared inputs: numbers of the envelope's `input_values`, else small random ones, and zeros for integers;
    a sentence for text; a dimension of any size has so large a share of `max_input_dims`, else 1."""
    random = np.random.default_rng(seed)
    sizes, values = _largest_sizes(tensors, limits or {}), (limits or {}).get("input_values") or {}
    out: Arrays = {}
    for tensor in tensors:
        largest = sizes.get(tensor.name, [1] * len(tensor.dims))
        shape = tuple(
            max(1, round(share * size)) if own == -1 else own for own, size in zip(tensor.dims, largest, strict=True)
        )
        out[tensor.name] = _drawn(random, tensor.data_type, shape, values.get(tensor.name))
    return out


def _drawn(
    random: np.random.Generator, data_type: str, shape: tuple[int, ...], within: Sequence[float] | None
) -> npt.NDArray[Any]:
    """Values of a type; `within`: from the least to the largest."""
    kind = NUMPY_TYPES.get(data_type, "object")
    if kind == "object":
        return np.full(shape, SAMPLE_TEXT.encode(), dtype=object)
    if kind.startswith("float"):
        low, high = within or (0.0, 0.0)
        drawn = random.uniform(low, high, shape) if within else random.normal(0.0, 1.0, shape)
        return np.asarray(drawn).astype(kind)
    if within:
        return np.asarray(
            random.integers(int(within[0]), int(within[1]), shape, dtype=np.dtype(kind).type, endpoint=True)
        )
    return np.zeros(shape, dtype=kind)


def _largest_sizes(tensors: Sequence[Tensor], limits: Mapping[str, Any]) -> Mapping[str, Sequence[int]]:
    """The envelope's `max_input_dims` where it declares every input with a dimension of any size, since they may have to fit each other."""
    sizes: Mapping[str, Sequence[int]] = limits.get("max_input_dims") or {}
    unsized = [tensor for tensor in tensors if -1 in tensor.dims]
    is_whole = unsized and all(len(sizes.get(tensor.name, ())) == len(tensor.dims) for tensor in unsized)
    return {tensor.name: sizes[tensor.name] for tensor in unsized} if is_whole else {}


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
    for name, largest in _largest_sizes(tensors, limits).items():
        sizes = [size if own == -1 else own for own, size in zip(dims[name], largest, strict=True)]
        longest[name] = np.resize(example[name], sizes)
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


def _array(tensor: Tensor, values: Mapping[str, Any]) -> npt.NDArray[Any]:
    if tensor.name not in values:
        raise ValueError(f"the input {tensor.name} has no value")
    kind = NUMPY_TYPES.get(tensor.data_type, "object")
    try:
        if kind == "object":
            array = np.array(values[tensor.name], dtype=object)
            flat = [_text(value) for value in array.ravel()]
            array = np.array([*flat, None], dtype=object)[:-1].reshape(array.shape)
        else:
            array = np.asarray(values[tensor.name]).astype(
                kind, casting="same_kind" if kind.startswith("float") else "unsafe"
            )
    except (TypeError, ValueError) as error:
        raise ValueError(f"the value of {tensor.name} is not {tensor.data_type}: {error}") from None
    return _shaped(tensor, array)


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
