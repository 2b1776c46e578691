"""Inputs that are made up from what a release declares, for whoever asks a server that nobody gave a request for: gates, the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
#: Open Inference Protocol data type → what numpy calls it. BF16 arrives widened to 32 bits.
NUMPY_TYPES: dict[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "float32",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}
#: Text for a made-up request.
SAMPLE_TEXT = "The quick brown fox jumps over the lazy dog."
#: Of the largest sizes that are declared, what made-up items have, a middling one first; the largest is asked beside them.
SHARES = (1 / 2, 1 / 8, 7 / 8, 1 / 4, 3 / 4, 3 / 8, 5 / 8)


class DeclaredTensor(Protocol):
    """A declared tensor. `dims` leave the batch axis out; -1 is any size."""

    @property
    def name(self) -> str: ...
    @property
    def data_type(self) -> str: ...
    @property
    def dims(self) -> tuple[int, ...]: ...


def made_up_items(tensors: Sequence[DeclaredTensor], limits: Mapping[str, Any], *, most: int) -> list[Arrays]:
    """Plausible items for declared inputs, of several sizes where the envelope's `limits` say how large they may be; one at least."""
    is_one = not largest_sizes(tensors, limits) and not limits.get("input_values")
    shares = SHARES[: 1 if is_one else most]
    return [made_up_item(tensors, limits, seed=at, share=share) for at, share in enumerate(shares)]


def made_up_item(
    tensors: Sequence[DeclaredTensor], limits: Mapping[str, Any] | None = None, *, seed: int, share: float = SHARES[0]
) -> Arrays:
    """A plausible item for declared inputs: numbers of the envelope's `input_values`, else small random ones, and zeros for integers;
    a sentence for text; a dimension of any size has so large a share of `max_input_dims`, else 1."""
    random = np.random.default_rng(seed)
    sizes, values = largest_sizes(tensors, limits or {}), (limits or {}).get("input_values") or {}
    out: Arrays = {}
    for tensor in tensors:
        largest = sizes.get(tensor.name, [1] * len(tensor.dims))
        shape = tuple(
            max(1, round(share * size)) if own == -1 else own for own, size in zip(tensor.dims, largest, strict=True)
        )
        out[tensor.name] = _drawn(random, tensor.data_type, shape, values.get(tensor.name))
    return out


def largest_sizes(tensors: Sequence[DeclaredTensor], limits: Mapping[str, Any]) -> Mapping[str, Sequence[int]]:
    """The envelope's `max_input_dims` where it declares every input with a dimension of any size, since they may have to fit each other."""
    sizes: Mapping[str, Sequence[int]] = limits.get("max_input_dims") or {}
    unsized = [tensor for tensor in tensors if -1 in tensor.dims]
    is_whole = unsized and all(len(sizes.get(tensor.name, ())) == len(tensor.dims) for tensor in unsized)
    return {tensor.name: sizes[tensor.name] for tensor in unsized} if is_whole else {}


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
