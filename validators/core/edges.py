"""Requests at and beyond the edge of what a release declares: what each must bring, and what its outcome says.

A wrong request must be refused as the caller's mistake, since an error of the server's counts against the release; one at a
declared limit must be answered; one that nothing promises to answer may end either way, but in time. After each of them the
server must answer as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from registry.core.kinds.texts import BODY
from serving.servers.core.made_up import NUMPY_TYPES
from validators.core.contract import Mismatch, Tensor
from validators.core.inputs import Arrays, longest_item, stack, text_input
from validators.core.verdict import Judgement, Verdict

#: A name that no release declares.
_UNKNOWN = "no_such_input"


class Expected(StrEnum):
    REFUSED = "refused"  # as the caller's mistake
    ANSWERED = "answered"
    EITHER = "either"  # no promise covers it: any end will do, in time


@dataclass(frozen=True)
class Edge:
    """A request, in words (`a batch of 17`), and what it must bring."""

    name: str
    inputs: Arrays
    expected: Expected


@dataclass(frozen=True)
class Outcome:
    """What an edge brought: `reason` is a `serving.ports.InferenceError`'s, empty where it was answered.

    `unwell` says how the server failed an ordinary request after it; empty where it was as before.
    """

    edge: Edge
    reason: str = ""
    message: str = ""
    unwell: str = ""

    @property
    def fault(self) -> str:
        """The kind of what is wrong: `let_in`, `refused`, `not_refused`, `hung`, `unwell`; empty for nothing."""
        if self.unwell:
            return "unwell"
        if self.edge.expected is Expected.REFUSED:
            return "let_in" if not self.reason else "not_refused" if self.reason != "rejected" else ""
        if self.edge.expected is Expected.ANSWERED:
            return "refused" if self.reason else ""
        return "hung" if self.reason == "timeout" else ""


def edges_of(
    tensors: Sequence[Tensor],
    example: Arrays,
    limits: Mapping[str, Any],
    *,
    max_batch_size: int,
    bodies: Mapping[str, bytes] | None = None,
) -> tuple[Edge, ...]:
    """Every edge of declared inputs, the harmless ones first. `example` is one item; 0 as `max_batch_size` is no batch axis.

    `limits` are the envelope's: those that `longest_item` can make an input of are tried. A server may answer what is beyond
    them, an input of another name, type or shape than declared it may not. `bodies`: wrong requests to a text model, by their names,
    in the place of wrong tensors.
    """
    wrong = _wrong(tensors, example, max_batch_size) if bodies is None else starmap(_of_body, bodies.items())
    return (*_at_limits(tensors, example, limits, max_batch_size), *wrong)


def mismatches(outcomes: Sequence[Outcome]) -> list[Mismatch]:
    """What is wrong, a sentence each."""
    says = {
        "let_in": "{edge} was answered, and had to be refused.",
        "refused": "{edge} was not answered: {message} [{reason}]",
        "not_refused": "{edge} had to be refused as the caller's mistake, and counts as the server's: {message} [{reason}]",
        "hung": "{edge} was neither answered nor refused in time: {message}",
        "unwell": "After {edge} the server did not answer an ordinary request as before: {unwell}",
    }
    return [
        Mismatch(
            one.fault,
            "",
            _sentence(
                says[one.fault].format(edge=one.edge.name, message=one.message, reason=one.reason, unwell=one.unwell)
            ),
        )
        for one in outcomes
        if one.fault
    ]


def judge_edges(found: Judgement, outcomes: Sequence[Outcome], *, not_tried: str = "") -> Judgement:
    """A contract gate's judgement that did not fail, with the edges: failed where one ended as it must not. `not_tried`: what could
    not be asked."""
    tried = [
        {"request": one.edge.name, "expected": one.edge.expected.value, "outcome": one.reason or "answered"}
        for one in outcomes
    ]
    broken = mismatches(outcomes)
    evidence = {**found.evidence, "edges": tried, "mismatches": [asdict(one) for one in broken]}
    if not_tried:
        evidence["edges_not_tried"] = not_tried
    if broken:
        more = f" ({len(broken) - 1} more)" if len(broken) > 1 else ""
        return Judgement(Verdict.FAILED, f"{broken[0].message}{more}", evidence)
    said = f"{found.reason} Each of {len(outcomes)} requests at and beyond the edge ended as it should."
    return Judgement(found.verdict, said, evidence)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _at_limits(
    tensors: Sequence[Tensor], example: Arrays, limits: Mapping[str, Any], max_batch_size: int
) -> Iterator[Edge]:
    has_batch_axis = max_batch_size > 0
    shortest = _shortest(tensors, example)
    if shortest is not None:
        yield Edge("an input of the least size", stack([shortest], has_batch_axis=has_batch_axis), Expected.EITHER)
    longest, used = longest_item(tensors, limits, example)
    if used:
        words = " and ".join(used)
        whole = stack([longest] * max(1, max_batch_size), has_batch_axis=has_batch_axis)
        yield Edge(f"an input of {words}", stack([longest], has_batch_axis=has_batch_axis), Expected.ANSWERED)
        if max_batch_size > 1:
            yield Edge(f"a batch of {max_batch_size} inputs of {words}", whole, Expected.ANSWERED)
        beyond, _ = longest_item(tensors, _raised(limits), example)
        yield Edge(f"an input beyond {words}", stack([beyond], has_batch_axis=has_batch_axis), Expected.EITHER)
    text = text_input(tensors)
    if text and example[text].size == 1:
        empty = {**example, text: np.full(example[text].shape, b"", dtype=object)}
        yield Edge(f"an empty {text}", stack([empty], has_batch_axis=has_batch_axis), Expected.EITHER)


def _wrong(tensors: Sequence[Tensor], example: Arrays, max_batch_size: int) -> Iterator[Edge]:
    has_batch_axis = max_batch_size > 0
    one = stack([example], has_batch_axis=has_batch_axis)
    if has_batch_axis:
        many = stack([example] * (max_batch_size + 1), has_batch_axis=True)
        yield Edge(f"a batch of {max_batch_size + 1}", many, Expected.REFUSED)
    yield Edge("a request with an unknown input", {**one, _UNKNOWN: np.zeros((1, 1), np.float32)}, Expected.REFUSED)
    for tensor in tensors:
        name, value = tensor.name, one[tensor.name]
        if len(tensors) > 1:
            rest = {other: array for other, array in one.items() if other != name}
            yield Edge(f"a request without {name}", rest, Expected.REFUSED)
        yield Edge(f"{name} of another data type", {**one, name: _retyped(tensor, value)}, Expected.REFUSED)
        yield Edge(f"{name} with an axis too many", {**one, name: value[..., np.newaxis]}, Expected.REFUSED)
        wider = _widened(tensor, value)
        if wider is not None:
            yield Edge(f"{name} of another shape", {**one, name: wider}, Expected.REFUSED)


def _of_body(name: str, body: bytes) -> Edge:
    return Edge(name, {BODY: np.array([body], dtype=object)}, Expected.REFUSED)


def _shortest(tensors: Sequence[Tensor], example: Arrays) -> Arrays | None:
    """The example cut to one element along every dimension of any size; None where inputs have none, or have it at one already."""
    cut = {
        tensor.name: example[tensor.name][tuple(slice(0, 1) if d == -1 else slice(None) for d in tensor.dims)]
        for tensor in tensors
    }
    return cut if any(cut[name].shape != example[name].shape for name in cut) else None


def _raised(limits: Mapping[str, Any]) -> dict[str, Any]:
    """The limits, each one more."""
    sizes = limits.get("max_input_dims") or {}
    tokens = limits.get("max_input_tokens")
    raised = {name: [size + 1 for size in dims] for name, dims in sizes.items()}
    return {"max_input_dims": raised, "max_input_tokens": None if tokens is None else int(tokens) + 8}


def _retyped(tensor: Tensor, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    kind = np.int32 if NUMPY_TYPES.get(tensor.data_type, "object") != "int32" else np.float32
    return np.zeros(value.shape, kind)


def _widened(tensor: Tensor, value: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """One more along the last dimension that is declared with a size; None where every dimension may have any."""
    fixed = [axis for axis, size in enumerate(tensor.dims) if size != -1]
    if not fixed:
        return None
    axis = fixed[-1] - len(tensor.dims)
    return np.concatenate([value, np.take(value, [0], axis=axis)], axis=axis)
