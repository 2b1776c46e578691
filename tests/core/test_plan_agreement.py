"""Whether a plan answers as its graph: what passes, what fails, and above all what cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from registry.core.engine_profile import InputProfile
from validators.core.contract import Tensor
from validators.core.distances import cosine_distance
from validators.core.plan_agreement import Agreement, AnswerPair, OutputAgreement, judge_plan, tolerance_of
from validators.core.plan_requests import PlanRequest, plan_requests

PROFILE = (InputProfile("x", (1, 6), (4, 6), (8, 6)),)
X, Y = Tensor("x", "FP32", (6,)), Tensor("y", "FP32", (3,))
WEIGHTS = np.random.default_rng(0).normal(0, 1, (6, 3)).astype(np.float32)
REQUESTS = list(plan_requests((X,), PROFILE, has_batch_axis=True, seed=1))
Model = Callable[[PlanRequest], Any]


def graph(request: PlanRequest) -> Any:
    return request.inputs["x"] @ WEIGHTS


def judged(
    plan: Model, own: Model = graph, output: Tensor = Y, **options: Any
) -> tuple[Agreement, str, OutputAgreement]:
    answered = [AnswerPair(one, {output.name: own(one)}, {output.name: plan(one)}) for one in REQUESTS]
    said = {"precision": None, "stated": None, "has_batch_axis": True, **options}
    verdict, reason, [found] = judge_plan([output], answered, **said)
    return verdict, reason, found


def off(request: PlanRequest, by: float) -> Any:
    """The graph's answer, each element off by such a share of it."""
    return graph(request) * np.float32(1 + by)


def test_equal_answers_pass_with_every_number_zero() -> None:
    verdict, reason, found = judged(graph)
    assert (verdict, reason) == (Agreement.PASSED, f"The plan answers {len(REQUESTS)} requests as the graph does.")
    assert found.largest_absolute == found.largest_relative == found.off_by_batch == found.beyond == 0
    assert found.elements == 3 * (4 + 4 + 3 * 8) and found.cosine_distance < 1e-9


@pytest.mark.parametrize(
    ("by", "verdict"), [(4e-3, Agreement.PASSED), (6e-3, Agreement.FAILED), (-6e-3, Agreement.FAILED)]
)
def test_the_limit_of_a_float_is_what_rounding_is(by: float, verdict: Agreement) -> None:
    found = judged(lambda one: off(one, by))
    assert found[0] is verdict
    assert found[2].largest_relative == pytest.approx(abs(by), rel=0.01)


def test_numbers_are_those_of_the_worst_element_and_name_its_request() -> None:
    def plan(request: PlanRequest) -> Any:
        answer = graph(request)
        if "equal rows" in request.name:
            answer[3, 1] += 1.0
        return answer

    verdict, reason, found = judged(plan)
    assert verdict is Agreement.FAILED and "1 of 96 elements are beyond 0.005" in reason
    assert (
        found.largest_absolute == pytest.approx(1.0) and found.beyond == 1 and found.as_json()["beyond_frac"] == 1 / 96
    )
    assert found.worst_request == "a batch of 8 equal rows, at the usual dims" and found.worst_request in reason


@pytest.mark.parametrize(
    ("by", "precision", "passes"), [(9e-3, "fp16", True), (2e-2, "fp16", False), (2e-2, "bf16", True)]
)
def test_a_coarser_format_may_round_more(by: float, precision: str, passes: bool) -> None:
    assert (judged(lambda one: off(one, by), precision=precision)[0] is Agreement.PASSED) is passes


def test_a_stated_tolerance_is_the_one_that_counts() -> None:
    assert judged(lambda one: off(one, 4e-2), stated=5e-2)[0] is Agreement.PASSED
    assert judged(lambda one: off(one, 1e-3), stated=5e-4)[0] is Agreement.FAILED


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_a_quantised_plan_is_unknown_until_a_tolerance_is_stated(precision: str) -> None:
    verdict, reason, _ = judged(graph, precision=precision)
    assert verdict is Agreement.UNKNOWN and f"none is known for {precision}" in reason
    assert judged(graph, precision=precision, stated=0.1)[0] is Agreement.PASSED


@pytest.mark.parametrize(
    ("data_type", "precision", "stated", "relative", "source"),
    [
        ("FP32", None, None, 5e-3, "rounding of FP32"),
        ("FP32", "tf32", None, 5e-3, "rounding of FP32"),
        ("FP32", "mixed", None, 1e-2, "rounding of FP32 and FP16"),
        ("FP16", "fp32", None, 1e-2, "rounding of FP16 and FP32"),
        ("INT64", "fp16", 0.1, 0.0, "integers are equal or not"),
        ("BOOL", None, None, 0.0, "integers are equal or not"),
    ],
)
def test_a_tolerance_names_its_source(
    data_type: str, precision: str | None, stated: float | None, relative: float, source: str
) -> None:
    found = tolerance_of(data_type, precision, stated)
    assert (found.relative, found.source) == (relative, source)


@pytest.mark.parametrize("by", [5e-3, 1e-2, 3e-2])
def test_elements_within_the_tolerance_leave_the_cosine_near_one(by: float) -> None:
    """Why the cosine is told and not judged."""
    random = np.random.default_rng(5)
    for size in (2, 512):
        row = random.normal(0, 1, size)
        worst = row + by * np.maximum(np.abs(row), np.sqrt(np.mean(row**2))) * random.choice([-1, 1], size)
        assert cosine_distance(row, worst) <= by**2


# batches


def test_identical_rows_that_differ_fail_though_each_is_within_tolerance() -> None:
    def plan(request: PlanRequest) -> Any:
        signs = np.where(np.arange(len(request.items)) % 2, 4e-3, -4e-3) if "equal rows" in request.name else 4e-3
        return (graph(request) * (1 + np.reshape(signs, (-1, 1)))).astype(np.float32)

    verdict, reason, found = judged(plan)
    assert verdict is Agreement.FAILED and "differ by 0.008 from batch to batch" in reason
    assert found.beyond == 0 and found.off_by_batch == pytest.approx(8e-3, rel=0.01)


@pytest.mark.parametrize("where", ["alone", "batch of 4,", "another order", "equal rows"])
def test_accuracy_that_is_lost_in_one_kind_of_batch_alone_fails(where: str) -> None:
    verdict, _, found = judged(lambda one: off(one, 0.05 if where in one.name else 0.0))
    assert verdict is Agreement.FAILED and where in found.worst_request


def test_rows_that_are_mixed_up_fail() -> None:
    verdict, _, _ = judged(lambda one: np.roll(graph(one), 1, axis=0))
    assert verdict is Agreement.FAILED


def test_a_graph_that_depends_on_its_batch_is_no_fault_of_the_plan() -> None:
    def centred(request: PlanRequest) -> Any:
        return graph(request) - graph(request).mean(axis=0, keepdims=True) * 0.5

    verdict, _, found = judged(centred, centred)
    assert verdict is Agreement.PASSED and found.off_by_batch < 1e-6
    assert found.notes == ["the graph's own answer to an item depends on its batch"]


# what cannot be seen is never passed


def spoilt(value: float, where: str = "") -> Model:
    def answer(request: PlanRequest) -> Any:
        rows = graph(request)
        if where in request.name:
            rows[0, 0] = value
        return rows

    return answer


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["", "equal rows"])
def test_numbers_that_are_not_finite_in_both_are_unknown(value: float, where: str) -> None:
    verdict, reason, _ = judged(spoilt(value, where), spoilt(value, where))
    assert verdict is Agreement.UNKNOWN and "the graph's own answer is empty or not finite" in reason


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_in_the_plan_alone_fails(value: float) -> None:
    verdict, reason, _ = judged(spoilt(value, "batch of 4,"))
    assert verdict is Agreement.FAILED and "to a batch of 4, at the usual dims is not finite" in reason


def test_a_plan_that_is_finite_where_the_graph_is_not_is_unknown() -> None:
    assert judged(graph, spoilt(np.nan))[0] is Agreement.UNKNOWN


def test_what_can_be_seen_fails_beside_what_cannot() -> None:
    def wrong_elsewhere(request: PlanRequest) -> Any:
        return graph(request) * (2 if "alone" in request.name else 1)

    assert judged(wrong_elsewhere, spoilt(np.nan, "equal rows"))[0] is Agreement.FAILED


def test_an_empty_output_is_unknown() -> None:
    nothing = Tensor("y", "FP32", (-1,))
    verdict, reason, found = judged(lambda one: graph(one)[:, :0], lambda one: graph(one)[:, :0], nothing)
    assert verdict is Agreement.UNKNOWN and "is empty" in reason and found.as_json()["beyond_frac"] is None


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_answer_that_is_always_the_same_is_unknown(value: float) -> None:
    def same(request: PlanRequest) -> Any:
        return np.full((len(request.items), 3), value, np.float32)

    verdict, reason, _ = judged(same, same)
    assert verdict is Agreement.UNKNOWN and "equal answers prove nothing" in reason
    assert judged(lambda one: same(one) + 1, same)[0] is Agreement.FAILED, "but another constant is wrong"


def test_answers_that_differ_less_than_the_tolerance_are_unknown() -> None:
    def nearly(request: PlanRequest) -> Any:
        return 1 + graph(request) * 1e-5

    assert judged(nearly, nearly)[0] is Agreement.UNKNOWN
    assert judged(nearly, nearly, stated=1e-7)[0] is Agreement.PASSED


def test_answers_that_tell_batches_apart_and_no_items_are_unknown() -> None:
    def size(request: PlanRequest) -> Any:
        return np.full((len(request.items), 3), len(request.items), np.float32)

    assert judged(size, size)[0] is Agreement.UNKNOWN


def test_items_of_other_dims_are_others() -> None:
    wide = (InputProfile("x", (1, 2), (2, 3), (4, 6)),)
    free = Tensor("x", "FP32", (-1,))
    options: dict[str, Any] = {"precision": None, "stated": None, "has_batch_axis": True}

    def summed(request: PlanRequest) -> dict[str, Any]:
        return {"y": request.inputs["x"].sum(axis=1, keepdims=True) * np.ones((1, 3), np.float32)}

    asked = plan_requests((free,), wide, has_batch_axis=True, seed=1)
    verdict, _, [found] = judge_plan([Y], [AnswerPair(one, summed(one), summed(one)) for one in asked], **options)
    assert verdict is Agreement.PASSED and found.notes == [], "the graph depends on no batch"


def test_nothing_asked_and_nothing_declared_is_unknown() -> None:
    options: dict[str, Any] = {"precision": None, "stated": None, "has_batch_axis": True}
    assert judge_plan([Y], [], **options)[:2] == (Agreement.UNKNOWN, "Nothing was compared.")
    one = AnswerPair(REQUESTS[0], {}, {})
    assert judge_plan([], [one], **options)[0] is Agreement.UNKNOWN


# answers that are none


def test_an_output_that_the_plan_lacks_or_shapes_otherwise_fails() -> None:
    answered = [AnswerPair(one, {"y": graph(one)}, {"z": graph(one)}) for one in REQUESTS]
    verdict, reason, _ = judge_plan([Y], answered, precision=None, stated=None, has_batch_axis=True)
    assert verdict is Agreement.FAILED and "lacks output y" in reason
    assert judged(lambda one: graph(one)[:, :2])[0] is Agreement.FAILED
    assert judged(lambda one: graph(one).astype(np.float64))[0] is Agreement.FAILED
    loose = Tensor("y", "FP32", (-1,))
    verdict, reason, _ = judged(lambda one: graph(one)[:, :2], output=loose)
    assert verdict is Agreement.FAILED and "has the shape [1, 2], the graph's [1, 3]" in reason


def test_a_graph_that_is_not_as_declared_says_nothing_of_the_plan() -> None:
    verdict, reason, _ = judged(graph, lambda one: graph(one).astype(np.float64))
    assert verdict is Agreement.UNKNOWN and "the graph's answer to item 1 alone" in reason


def test_labels_are_equal_or_wrong() -> None:
    label = Tensor("label", "INT64", (1,))

    def labels(request: PlanRequest) -> Any:
        return graph(request).argmax(axis=1, keepdims=True)

    assert judged(labels, labels, label)[0] is Agreement.PASSED
    verdict, reason, found = judged(lambda one: (labels(one) + ("order" in one.name)) % 3, labels, label)
    assert verdict is Agreement.FAILED and found.beyond == 8 and "8 of 32 elements" in reason
    large = 2**60

    def number(request: PlanRequest) -> Any:
        return labels(request) + large

    assert judged(lambda one: number(one) + 1, number, label)[0] is Agreement.FAILED, "beyond what a float can hold"


def test_the_worst_output_gives_the_verdict() -> None:
    def both(request: PlanRequest, by: float) -> dict[str, Any]:
        return {"good": graph(request), "bad": off(request, by)}

    outputs = [replace(Y, name="good"), replace(Y, name="bad")]
    answered = [AnswerPair(one, both(one, 0), both(one, 0.1)) for one in REQUESTS]
    verdict, reason, found = judge_plan(outputs, answered, precision=None, stated=None, has_batch_axis=True)
    assert verdict is Agreement.FAILED and reason.startswith("bad: ")
    assert [one.verdict for one in found] == [Agreement.PASSED, Agreement.FAILED]


def test_a_model_without_a_batch_axis_is_compared_answer_by_answer() -> None:
    bare = list(plan_requests((X,), (InputProfile("x", (6,), (6,), (6,)),), has_batch_axis=False, seed=1))
    options: dict[str, Any] = {"precision": None, "stated": None, "has_batch_axis": False}
    right = [AnswerPair(one, {"y": graph(one)}, {"y": graph(one)}) for one in bare]
    wrong = [AnswerPair(one, {"y": graph(one)}, {"y": off(one, 0.1)}) for one in bare]
    assert judge_plan([Y], right, **options)[0] is Agreement.PASSED
    assert judge_plan([Y], wrong, **options)[0] is Agreement.FAILED
    assert judge_plan([Y], right[:1], **options)[0] is Agreement.UNKNOWN, "one answer alone tells no items apart"


def test_integers_that_differ_are_said_to_differ_however_large_they_are() -> None:
    """2^62 and the next number are one and the same float."""

    def counted(by: int) -> Model:
        return lambda one: np.array([[2**62 + at + by] for at in one.items], np.int64)

    output = Tensor("y", "INT64", (1,))
    verdict, reason, _ = judged(counted(1), counted(0), output)
    assert (verdict, reason) == (Agreement.FAILED, "y: 32 of 32 elements are not equal.")


def test_one_item_alone_proves_nothing_and_says_why() -> None:
    only = [AnswerPair(one, {"y": graph(one)}, {"y": graph(one)}) for one in REQUESTS if set(one.items) == {0}]
    verdict, reason, _ = judge_plan([Y], only, precision=None, stated=None, has_batch_axis=True)
    assert verdict is Agreement.UNKNOWN and "it was asked one item only" in reason
