"""Asks a server what it says of a model, and what it really answers at several batch sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from serving.ports import GRPC, InferenceError, InferenceServer, TensorSpec
from serving.servers.clients import request_bytes
from validators.core.contract import Mismatch, Tensor, compare_answer
from validators.core.edges import Edge, Outcome
from validators.core.input_use import MOST_ALONE, UNWELL, InputUse, same_answers, spelt_out, variations
from validators.core.inputs import Arrays, stack

#: Before each message of gRPC: whether it is compressed, and its length. Gateways count them too.
_GRPC_FRAME_BYTES = 5


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
    facts = ContractFacts(_tensors(inputs, has_batch_axis), _tensors(outputs, has_batch_axis))
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


def try_edges(
    server: InferenceServer,
    model: str,
    edges: Sequence[Edge],
    ordinary: Arrays,
    outputs: Sequence[Tensor],
    *,
    batch_size: int | None,
    timeout_s: float,
    progress: Callable[[int], None],
) -> list[Outcome]:
    """What each edge brings, and whether an `ordinary` request, of `batch_size`, is answered after it; nothing more once one is not."""
    out: list[Outcome] = []
    for done, edge in enumerate(edges):
        progress(done)
        failure = _failure(server, model, edge.inputs, timeout_s)
        reason, message = (failure.reason, failure.message) if failure else ("", "")
        out.append(Outcome(edge, reason, message, _unwell(server, model, ordinary, outputs, batch_size, timeout_s)))
        if out[-1].unwell:
            break
    return out


def try_inputs(
    server: InferenceServer,
    model: str,
    tensors: Sequence[Tensor],
    items: Sequence[Arrays],
    values: Mapping[str, Any],
    *,
    has_batch_axis: bool,
    timeout_s: float,
    progress: Callable[[], None],
) -> InputUse:
    """What other inputs change of the answer to the first of `items`: the other items, then made-up values. `values`: the
    envelope's `input_values`. `progress` is called before each request and may raise. Inputs are changed one by one while
    that takes no longer than `timeout_s`. Raises InferenceError when the server is gone.
    """

    spelt: list[Mismatch] = []

    def ask(item: Arrays) -> dict[str, npt.NDArray[Any]] | None:
        progress()
        inputs = stack([item], has_batch_axis=has_batch_axis)
        try:
            answer = server.infer(model, inputs, timeout_s=timeout_s).outputs
        except InferenceError as error:
            if error.reason in {"unreachable", "timeout"}:
                raise
            return None
        spelt.extend(spelt_out(inputs, answer))
        return answer

    first, tried, state = items[0], 1, "not_tried"
    try:
        answer = ask(first)
        if answer is None or not same_answers(answer, ask(first)):
            return InputUse("not_tried" if answer is None else "not_deterministic", tried, (), tuple(spelt[:1]))
        for other in (*items[1:], *variations(tensors, first, values)):
            tried, state = tried + 1, "same"
            changed = ask(other)
            if not same_answers(answer, changed):
                state = "used"
                break
        if state == "used" and changed is None and ask(first) is None:
            return InputUse(state, tried, (), (UNWELL,))
        if not spelt and any(tensor.data_type == "BYTES" for tensor in tensors):
            ask(next(variations(tensors, first, values), first))
        alone, until = (
            tensors[:MOST_ALONE] if state == "used" and len(tensors) > 1 else (),
            time.monotonic() + timeout_s,
        )
        without = tuple(
            tensor.name
            for tensor in alone
            if time.monotonic() < until
            and all(same_answers(answer, ask(one)) for one in variations(tensors, first, values, of=tensor.name))
        )
    except InferenceError as error:
        if error.reason == "unreachable":
            raise
        return InputUse("not_tried", tried, (), tuple(spelt[:1]))
    return InputUse(state, tried, without, tuple(spelt[:1]))


def gateway_bytes(model: str, inputs: Arrays, *, speaks: str = "") -> int:
    """Bytes of the body of a request, over gRPC if the server has it, as gateways count them."""
    frame = 0 if speaks else _GRPC_FRAME_BYTES
    return frame + request_bytes(model, inputs, protocol=GRPC, speaks=speaks)


def _failure(server: InferenceServer, model: str, inputs: Arrays, timeout_s: float) -> InferenceError | None:
    try:
        server.infer(model, inputs, timeout_s=timeout_s)
    except InferenceError as error:
        return error
    return None


def _unwell(
    server: InferenceServer,
    model: str,
    ordinary: Arrays,
    outputs: Sequence[Tensor],
    batch_size: int | None,
    timeout_s: float,
) -> str:
    """How an ordinary request is not answered as declared; empty where it is."""
    try:
        answer = server.infer(model, ordinary, timeout_s=timeout_s).outputs
    except InferenceError as error:
        return f"{error.message} [{error.reason}]"
    return " ".join(one.message for one in compare_answer(outputs, answer, batch_size=batch_size)[:1])


def _tensors(specs: Sequence[TensorSpec], has_batch_axis: bool) -> tuple[Tensor, ...]:
    return tuple(Tensor(one.name, one.data_type, one.dims_of_item(has_batch_axis=has_batch_axis)) for one in specs)
