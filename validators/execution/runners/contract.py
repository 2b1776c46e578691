"""Asks a server what it says of a model, and what it really answers at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from serving.ports import InferenceError, InferenceServer, TensorSpec
from validators.core.contract import Tensor
from validators.core.inputs import Arrays, stack


@dataclass(frozen=True)
class ContractFacts:
    """`answers` and `refusals` are by batch size; a size is in one of them."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    answers: dict[int, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)


def observe(
    server: InferenceServer,
    model: str,
    items: Sequence[Arrays],
    sizes: Sequence[int],
    *,
    has_batch_axis: bool,
    timeout_s: float,
    progress: Callable[[int, int], None],
) -> ContractFacts:
    """One inference per batch size, its items taken round robin from `items`. Raises InferenceError when the server is gone."""
    inputs, outputs = server.metadata(model)
    facts = ContractFacts(_tensors(inputs), _tensors(outputs))
    for done, size in enumerate(sizes):
        progress(done, len(sizes))
        batch = stack([items[i % len(items)] for i in range(size)], has_batch_axis=has_batch_axis)
        try:
            facts.answers[size] = server.infer(model, batch, timeout_s=timeout_s).outputs
        except InferenceError as error:
            if error.reason == "unreachable":
                raise
            facts.refusals[size] = f"{error.message} [{error.reason}]"
    progress(len(sizes), len(sizes))
    return facts


def _tensors(specs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
    return tuple(Tensor(spec.name, spec.data_type, tuple(spec.dims)) for spec in specs)
