"""Warm-up and health-check requests, made from a release's own declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from registry.core.serving import sent_dims
from serving.core.made_up import NUMPY_TYPES, made_up_item
from serving.ports import Inference, InferenceError, InferenceServer, LaunchError, TensorSpec

#: Of the largest sizes that are declared: what is made up is asked again as health check, beside users' requests.
_SHARE = 1 / 8
_UNSAID = "BF16"
_TEXT = b"warm-up"


def warm_up(
    server: InferenceServer, model: str, serving: dict[str, Any], *, limits: Mapping[str, Any], timeout_s: float
) -> None:
    """Asks every warm-up request once, `timeout_s` for each; `limits` are the envelope's. Raises LaunchError("warmup_failed")."""
    try:
        for tensors in requests(serving, limits):
            check(server.infer(model, tensors, timeout_s=timeout_s), serving)
    except ValueError as error:
        raise LaunchError(
            "warmup_failed", f"A warm-up request cannot be made: {error}. Correct serving.warmup and push again."
        ) from error
    except InferenceError as error:
        hint = (
            ""
            if serving.get("warmup")
            else " It was made up from the declared inputs; give real ones in serving.warmup, or declare their sizes and values in "
            "envelope.limits."
        )
        raise LaunchError("warmup_failed", f"A warm-up request failed: {error.message}{hint}") from error


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


def limits_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a release's envelope says of its inputs."""
    return (manifest.get("envelope") or {}).get("limits") or {}


def _made_up(serving: dict[str, Any], limits: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """One item, within what the envelope's `limits` say of sizes and values.

    Where they say nothing of an input's values: zeros, or one text, for ever. Releases that run were let in with these.
    """
    tensors = [TensorSpec(one["name"], one["data_type"], tuple(sent_dims(one["dims"]))) for one in serving["inputs"]]
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
        ValueError: the value has neither shape, or holds what the data type does not.
    """
    if tensor["data_type"] not in NUMPY_TYPES or tensor["data_type"] == _UNSAID:
        raise ValueError(f"{tensor['data_type']} has no form in JSON; give {tensor['name']} another data type")
    dtype = np.dtype(NUMPY_TYPES[tensor["data_type"]])
    sent = tuple(sent_dims(tensor["dims"]))
    dims = tuple(1 if dim == -1 else dim for dim in sent)
    try:
        read = np.asarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the value of {tensor['name']} is not {tensor['data_type']}: {error}") from None
    whole = (batch, *sent) if batch else sent
    if _fits(read.shape, whole):
        return read
    if batch and _fits(read.shape, sent):
        return np.repeat(read[np.newaxis], batch, axis=0)
    if read.shape == ():
        return np.full((batch, *dims) if batch else dims, read.item(), dtype=dtype)
    if batch and read.shape == (batch,) and all(dim == 1 for dim in dims):
        return read.reshape((batch, *dims))
    raise ValueError(
        f"the value of {tensor['name']} has the shape {list(read.shape)}, which is neither {list(whole)} nor one item of it"
    )


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))


def check(answer: Inference, serving: dict[str, Any]) -> None:
    """Raises InferenceError unless every declared output came: a server answers 200 without an output that its code forgot."""
    missing = [tensor["name"] for tensor in serving["outputs"] if tensor["name"] not in answer.outputs]
    if missing:
        raise InferenceError("server_error", f"The answer lacks the outputs {', '.join(missing)}.")
