"""The requests of a release's `serving.warmup`, for the agent that warms up with them and the gates that ask with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from registry.core.serving import sent_dims
from registry.core.warmup_values import sent_shape
from serving.servers.core.made_up import NUMPY_TYPES, made_up_item

#: Share of the largest declared sizes. It is small because the request is repeated as health check, beside users' requests.
_SHARE = 1 / 8
_UNSAID = "BF16"
_TEXT = b"warm-up"


class _Declared(NamedTuple):
    name: str
    data_type: str
    dims: tuple[int, ...]


def requests(serving: dict[str, Any], limits: Mapping[str, Any]) -> list[dict[str, npt.NDArray[Any]]]:
    """One set of tensors for each declared warm-up; one that is made up if none is, and so is an input that is left out or null.

    Raises ValueError.
    """
    made_up = _made_up(serving, limits)

    def value(one: dict[str, Any], name: str) -> Any:
        given = (one.get("inputs") or {}).get(name)
        return made_up[name] if given is None else given

    return [
        {
            tensor["name"]: array(value(one, tensor["name"]), tensor, _batch(serving, one))
            for tensor in serving["inputs"]
        }
        for one in serving.get("warmup") or [{"batch_size": 1}]
    ]


def _made_up(serving: dict[str, Any], limits: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """One item, within the sizes and values of the envelope's `limits`.

    An input without declared values has zeros or one text. Releases that run were let in with these, so that they stay.
    """
    tensors = [_Declared(one["name"], one["data_type"], tuple(sent_dims(one["dims"]))) for one in serving["inputs"]]
    item, said = made_up_item(tensors, limits, seed=0, share=_SHARE), limits.get("input_values") or {}
    return {name: value if said.get(name) else _plain(value) for name, value in item.items()}


def _plain(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.full(value.shape, _TEXT if value.dtype == object else 0, dtype=value.dtype)


def _batch(serving: dict[str, Any], one: dict[str, Any]) -> int:
    """0 is no batch axis."""
    return int(one.get("batch_size", 1)) if serving["max_batch_size"] > 0 else 0


def array(value: Any, tensor: dict[str, Any], batch: int) -> npt.NDArray[Any]:
    """The tensor that a JSON value stands for: the whole batch, or one item that is repeated to make it.

    Raises:
        ValueError: the value has neither shape, or an element that is not of the data type.
    """
    if tensor["data_type"] not in NUMPY_TYPES or tensor["data_type"] == _UNSAID:
        raise ValueError(f"{tensor['data_type']} has no form in JSON; give {tensor['name']} another data type")
    dtype = np.dtype(NUMPY_TYPES[tensor["data_type"]])
    try:
        read = np.asarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the value of {tensor['name']} is not {tensor['data_type']}: {error}") from None
    dims = sent_dims(tensor["dims"])
    shape = sent_shape(read.shape, dims, batch)
    if shape is None:
        whole = [batch, *dims] if batch else dims
        raise ValueError(
            f"the value of {tensor['name']} has the shape {list(read.shape)}, which is neither {whole} nor one item of it"
        )
    return read.reshape(shape) if read.size == math.prod(shape) else np.broadcast_to(read, shape).copy()
