"""Whether an engine plan answers as the graph it was built from: numbers for each output, and passed, failed or unknown.

A comparison that cannot see is unknown, never passed: where the graph's own answers are not finite, empty, or so alike for
different items that a plan with its rows mixed up would agree as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from validators.core.contract import Tensor, compare_answer
from validators.core.distances import cosine_distance, relative_errors, rms
from validators.core.inputs import Arrays
from validators.core.plan_requests import PlanRequest
from validators.core.ruler import rounding_of

#: The number formats that a plan may compute in, and whose rounding its floats are held to at least.
_FORMATS: Final = {"fp32": "FP32", "tf32": "FP32", "fp16": "FP16", "mixed": "FP16", "bf16": "BF16"}


class Agreement(StrEnum):
    PASSED = "passed"
    UNKNOWN = "unknown"
    FAILED = "failed"


#: Worst last.
_SEVERITY: Final = (Agreement.PASSED, Agreement.UNKNOWN, Agreement.FAILED)


@dataclass(frozen=True)
class Tolerance:
    """`relative`: what an element may be off by, in parts of its own size, or of its row's rms where that is larger. None:
    there is none that is known."""

    relative: float | None
    source: str


@dataclass(frozen=True)
class AnswerPair:
    """One request, and what each of the two made of it."""

    request: PlanRequest
    graph: Arrays
    plan: Arrays


@dataclass
class OutputAgreement:
    """One output over all requests. `off_by_batch` is how far the plan's answers to one item are apart in different batches.

    `cosine_distance` is told and not judged: elements within the tolerance leave it below the tolerance's square.
    """

    output: str
    data_type: str
    tolerance: Tolerance
    verdict: Agreement = Agreement.UNKNOWN
    reason: str = ""
    elements: int = 0
    beyond: int = 0  # elements that are out of tolerance
    largest_absolute: float = 0.0
    largest_relative: float = 0.0
    cosine_distance: float = 0.0
    off_by_batch: float = 0.0
    worst_request: str = ""
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        beyond_frac = self.beyond / self.elements if self.elements else None
        return {**asdict(self), "beyond_frac": beyond_frac}


def tolerance_of(data_type: str, precision: str | None, stated: float | None) -> Tolerance:
    """What an output of this type may be off by. `precision` is the envelope's `engine.precision`, `stated` what a person said.

    Integers must be equal. Floats may differ as whole networks do by rounding: see `validators.core.ruler`.
    """
    if not data_type.startswith(("FP", "BF")):
        return Tolerance(0.0, "integers are equal or not")
    if stated is not None:
        return Tolerance(stated, "stated")
    if precision is not None and precision not in _FORMATS:
        return Tolerance(None, f"none is known for {precision}")
    formats = [data_type] if precision is None else [data_type, _FORMATS[precision]]
    return Tolerance(
        rounding_of("largest_relative_error", formats), f"rounding of {' and '.join(dict.fromkeys(formats))}"
    )


def judge_plan(
    outputs: Sequence[Tensor],
    answered: Sequence[AnswerPair],
    *,
    precision: str | None,
    stated: float | None,
    has_batch_axis: bool,
) -> tuple[Agreement, str, list[OutputAgreement]]:
    """(the worst verdict, its reason in a sentence, every output's own)."""
    found = []
    for tensor in outputs:
        one = OutputAgreement(tensor.name, tensor.data_type, tolerance_of(tensor.data_type, precision, stated))
        one.verdict, one.reason = _judge(tensor, answered, one, has_batch_axis=has_batch_axis)
        found.append(one)
    if not found or not answered:
        return Agreement.UNKNOWN, "Nothing was compared.", found
    worst = max(found, key=lambda one: _SEVERITY.index(one.verdict))
    if worst.verdict is Agreement.PASSED:
        return worst.verdict, f"The plan answers {len(answered)} requests as the graph does.", found
    return worst.verdict, f"{worst.output}: {worst.reason}", found


def _judge(
    tensor: Tensor, answered: Sequence[AnswerPair], one: OutputAgreement, *, has_batch_axis: bool
) -> tuple[Agreement, str]:
    """Fills the numbers of `one`; gives its verdict and the reason."""
    for each in answered:
        broken = _broken(tensor, each, has_batch_axis=has_batch_axis)
        if broken:
            return broken
    rows = [row for each in answered for row in _rows(tensor.name, each, has_batch_axis=has_batch_axis)]
    seen = [row for row in rows if row.graph.size and np.isfinite(row.graph).all()]
    one.elements = sum(row.graph.size for row in seen)
    usual = rms(np.array([rms(row.graph) for row in seen]))
    within = one.tolerance.relative
    for row in seen:
        if not np.isfinite(row.plan).all():
            one.worst_request = row.request.name
            return Agreement.FAILED, f"the plan's answer to {row.request.name} is not finite, and the graph's is."
        _measure(row, one, usual)
    if within is None:
        return Agreement.UNKNOWN, f"a tolerance is {one.tolerance.source}; state one."
    _between_batches(seen, one, usual, within)
    return _verdict(rows, seen, one, usual, within)


@dataclass(frozen=True)
class _Row:
    request: PlanRequest
    item: int
    graph: npt.NDArray[np.float64]
    plan: npt.NDArray[np.float64]
    differs: int  # elements that are not equal, before they became floats


def _broken(tensor: Tensor, each: AnswerPair, *, has_batch_axis: bool) -> tuple[Agreement, str] | None:
    """What is no answer at all. An answer that the graph itself does not give as declared says nothing of the plan."""
    size = len(each.request.items) if has_batch_axis else None
    for arrays, verdict, who in ((each.graph, Agreement.UNKNOWN, "graph"), (each.plan, Agreement.FAILED, "plan")):
        own = {name: array for name, array in arrays.items() if name == tensor.name}
        wrong = [one for one in compare_answer([tensor], own, batch_size=size) if one.kind != "not_finite"]
        wrong = [one for one in wrong if not one.message.endswith("came empty.")]
        if wrong:
            return verdict, f"the {who}'s answer to {each.request.name} is not as declared: {wrong[0].message}"
    if each.graph[tensor.name].shape != each.plan[tensor.name].shape:
        shapes = [list(arrays[tensor.name].shape) for arrays in (each.plan, each.graph)]
        return (
            Agreement.FAILED,
            f"the plan's answer to {each.request.name} has the shape {shapes[0]}, the graph's {shapes[1]}.",
        )
    return None


def _rows(name: str, each: AnswerPair, *, has_batch_axis: bool) -> Iterator[_Row]:
    graph, plan = each.graph[name], each.plan[name]
    pairs = zip(graph, plan, strict=True) if has_batch_axis else [(graph, plan)]
    for item, (expected, got) in zip(each.request.items, pairs, strict=True):
        differs = int(np.count_nonzero(expected != got))
        yield _Row(each.request, item, np.asarray(expected, np.float64), np.asarray(got, np.float64), differs)


def _measure(row: _Row, one: OutputAgreement, usual: float) -> None:
    errors = _errors(row.graph, row.plan, usual)
    largest = float(errors.max(initial=0.0))
    if largest > one.largest_relative or not one.worst_request:
        one.worst_request = row.request.name
    one.largest_relative = max(one.largest_relative, largest)
    one.largest_absolute = max(one.largest_absolute, float(np.abs(row.plan - row.graph).max(initial=0.0)))
    one.cosine_distance = max(one.cosine_distance, cosine_distance(row.graph, row.plan))
    if one.tolerance.relative is not None:
        one.beyond += int(np.count_nonzero(errors > one.tolerance.relative)) if one.tolerance.relative else row.differs


def _errors(expected: npt.NDArray[np.float64], got: npt.NDArray[np.float64], usual: float) -> npt.NDArray[np.float64]:
    errors = relative_errors(expected, got, usual)
    assert errors is not None, "shapes were compared before"
    return errors


def _between_batches(rows: Sequence[_Row], one: OutputAgreement, usual: float, within: float) -> None:
    """How far the plan's answers to an item are from its answer alone, where the graph's own do not depend on the batch."""
    alone = {(row.request.pool, row.item): row for row in rows if row.request.is_alone}
    for row in rows:
        first = alone.get((row.request.pool, row.item))
        if first is None or first is row or first.graph.shape != row.graph.shape or not np.isfinite(row.plan).all():
            continue
        if _errors(first.graph, row.graph, usual).max(initial=0.0) > within:
            note = "the graph's own answer to an item depends on its batch"
            one.notes += [note] if note not in one.notes else []
            continue
        one.off_by_batch = max(one.off_by_batch, float(_errors(first.plan, row.plan, usual).max(initial=0.0)))


def _verdict(
    rows: Sequence[_Row], seen: Sequence[_Row], one: OutputAgreement, usual: float, within: float
) -> tuple[Agreement, str]:
    if one.beyond and not within:
        return Agreement.FAILED, f"{one.beyond} of {one.elements} elements are not equal."
    if one.beyond:
        said = (
            f"{one.beyond} of {one.elements} elements are beyond {within:g}, the worst {one.largest_relative:.2g} off"
        )
        return Agreement.FAILED, f"{said} ({one.worst_request})."
    if one.off_by_batch > within:
        return Agreement.FAILED, f"the plan's answers to one item differ by {one.off_by_batch:.2g} from batch to batch."
    if len(seen) < len(rows):
        return (
            Agreement.UNKNOWN,
            f"the graph's own answer is empty or not finite in {len(rows) - len(seen)} of {len(rows)} rows.",
        )
    if len({(row.request.pool, row.item) for row in seen}) < 2:
        return (
            Agreement.UNKNOWN,
            "it was asked one item only, which equal answers prove nothing of; give more examples.",
        )
    if not _tells_items_apart(seen, usual, within):
        return Agreement.UNKNOWN, "the graph answers every item the same, so that equal answers prove nothing."
    return Agreement.PASSED, "as the graph's."


def _tells_items_apart(rows: Sequence[_Row], usual: float, within: float) -> bool:
    """Whether two items of one pool, each asked alone, have answers that are farther apart than the tolerance."""
    first: dict[int, _Row] = {}
    alone = [row for row in rows if row.request.is_alone]
    pairs = [(first.setdefault(row.request.pool, row), row) for row in alone]
    return any(
        _errors(one.graph, other.graph, usual).max(initial=0.0) > within
        for one, other in pairs
        if one.graph.shape == other.graph.shape
    )
