"""Whether two answers differ, what a comparison counts for, and how often one may compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.core.shadow import Allowance, ComparisonOutcome, Rule, Tally, difference, judged

VALUES = Rule()
CLASSES = Rule(answer="scores", labels=("negative", "positive"))


def f32(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.float32)


def kind_of(expected: Any, got: Any, rule: Rule = VALUES) -> str:
    found = difference({"y": expected}, {"y": got}, rule)
    return found.kind if found else ""


@pytest.mark.parametrize(
    ("expected", "got", "kind"),
    [
        (f32(1, 2), f32(1, 2), ""),
        (f32(1000), f32(1000.9), ""),  # within a thousandth
        (f32(1000), f32(1001.2), "value"),
        (f32(0), f32(0.00009), ""),
        (f32(0), f32(0.0002), "value"),
        (f32(np.nan, 1), f32(np.nan, 1), ""),  # stable has it too: not the candidate's doing
        (f32(np.inf), f32(np.inf), ""),
        (f32(np.inf), f32(-np.inf), "value"),
        (f32(1, 2), f32(1, np.nan), "not_finite"),
        (f32(np.nan, 2), f32(1, np.nan), "value"),
        (f32(3e38), f32(-3e38), "value"),
        (np.float16([10]), np.float16([10.05]), ""),
        (np.float64([1]), np.float64([1.0001]), "value"),
        (np.int64([7]), np.int64([8]), "value"),
        (np.bool_([True]), np.bool_([False]), "value"),
        (np.array([b"a", b"b"], object), np.array(["a", "b"], object), ""),
        (np.array([b"a", b"b"], object), np.array([b"a", b"c"], object), "value"),
        (np.array([[b"a"]], object), np.array([b"a"], object), "shape"),
        (f32(1), np.float64([1]), "data_type"),
        (f32(1), np.array([b"1"], object), "data_type"),
        (f32(1, 2), f32(1), "shape"),
        (f32(), f32(), ""),
        (np.float32(3), np.float32(4), "value"),  # no axis at all
    ],
)  # fmt: skip
def test_values_are_compared_by_their_type(expected: Any, got: Any, kind: str) -> None:
    assert kind_of(np.asarray(expected), np.asarray(got)) == kind


@pytest.mark.parametrize(("expected", "got", "kind"), [({"a": 1}, {}, "missing"), ({}, {"a": 1}, "extra")])
def test_a_missing_and_an_undeclared_output_are_differences(expected: Any, got: Any, kind: str) -> None:
    arrays = [{name: f32(value) for name, value in one.items()} for one in (expected, got)]
    found = difference(*arrays, VALUES)
    assert found is not None
    assert (found.kind, found.output) == (kind, "a")


def test_brain_floats_are_known_by_what_is_declared() -> None:
    assert kind_of(f32(1), f32(1.02)) == "value"
    assert kind_of(f32(1), f32(1.02), Rule(data_types={"y": "BF16"})) == ""


def test_the_worst_value_is_named_with_its_place() -> None:
    found = difference({"y": f32([1, 2], [3, 4])}, {"y": f32([1, 2.1], [3, 9])}, VALUES)
    assert found is not None
    assert found.words == "y[1, 1] is 9, expected 4 (2 of 4 values differ)"


def test_long_text_is_shown_in_part_only() -> None:
    secret = b"x" * 39 + b"-and-the-rest-of-a-users-text"
    found = difference({"y": np.array([secret], object)}, {"y": np.array([b""], object)}, VALUES)
    assert found is not None
    assert "the-rest" not in found.words and "…" in found.words


@pytest.mark.parametrize(
    ("got", "kind"),
    [
        (f32([0.1, 0.9], [0.8, 0.2]), ""),
        (f32([0.45, 0.55], [0.6, 0.4]), ""),  # other scores, the same classes
        (f32([0.55, 0.45], [0.6, 0.4]), "answer"),
        (f32([np.nan, 0.9], [0.8, 0.2]), "not_finite"),
        (f32([0.1, 0.9]), "shape"),
    ],
)
def test_where_the_class_is_the_answer_scores_may_differ(got: Any, kind: str) -> None:
    found = difference({"scores": f32([0.1, 0.9], [0.8, 0.2])}, {"scores": got}, CLASSES)
    assert (found.kind if found else "") == kind
    if kind == "answer":
        assert found is not None
        assert found.words == "the answer of row 0 is 'negative', expected 'positive'"


@pytest.mark.parametrize(("wrong", "counted"), [(1, ""), (2, " (2 of 3 rows differ)"), (3, " (3 of 3 rows differ)")])
def test_several_wrong_answers_are_counted(wrong: int, counted: str) -> None:
    right, other = [0.1, 0.9], [0.8, 0.2]
    found = difference(
        {"scores": f32(*[right] * 3)}, {"scores": f32(*[other] * wrong, *[right] * (3 - wrong))}, CLASSES
    )
    assert found is not None
    assert found.words == f"the answer of row 0 is 'negative', expected 'positive'{counted}"


def test_beside_the_answer_only_the_form_counts() -> None:
    def asked(embedding: Any) -> str:
        scores = f32([0.1, 0.9])
        found = difference(
            {"scores": scores, "embedding": f32([1, 2])}, {"scores": scores, "embedding": embedding}, CLASSES
        )
        return found.kind if found else ""

    assert asked(f32([9, 9])) == ""
    assert asked(f32([9, 9, 9])) == ""
    assert asked(f32([9, np.inf])) == "not_finite"
    assert asked(f32(9)) == "shape"
    assert asked(np.int64([[9, 9]])) == "data_type"


def test_an_answer_that_is_none_for_each_item_is_compared_by_value() -> None:
    alone = Rule(answer="scores", has_batch_axis=True)
    assert kind_of(np.float32(1), np.float32(2), alone) == ""  # another output than the answer
    found = difference({"scores": np.asarray(np.float32(1))}, {"scores": np.asarray(np.float32(2))}, alone)
    assert found is not None and found.kind == "value"


def test_without_a_batch_axis_the_whole_output_is_one_answer() -> None:
    rule = Rule(answer="scores", has_batch_axis=False)
    assert difference({"scores": f32(0.1, 0.9)}, {"scores": f32(0.3, 0.7)}, rule) is None
    found = difference({"scores": f32(0.1, 0.9)}, {"scores": f32(0.7, 0.3)}, rule)
    assert found is not None and found.words == "the answer of row 0 is 0, expected 1"


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_an_answer_never_differs_from_itself(values: list[float]) -> None:
    for rule in (VALUES, CLASSES):
        array = f32(values)
        assert difference({"scores": array}, {"scores": array.copy()}, rule) is None


# -- what it counts for -------------------------------------------------------------------------------------------------

SAME, OTHER = {"y": f32(1)}, {"y": f32(2)}


@pytest.mark.parametrize(
    ("candidate", "secondary", "candidate_bad", "stable_bad"),
    [
        (SAME, SAME, False, False),
        (OTHER, SAME, True, False),
        (OTHER, OTHER, True, True),  # noise: it is held against stable as well
        (SAME, OTHER, False, True),
        ("it is gone [unreachable]", SAME, True, False),
    ],
)
def test_raw_differences_are_the_candidates_and_noise_is_stables(
    candidate: Any, secondary: Any, candidate_bad: bool, stable_bad: bool
) -> None:
    outcome = judged(SAME, candidate, secondary, VALUES)
    assert (outcome.candidate_bad, outcome.stable_bad) == (candidate_bad, stable_bad)
    assert (outcome.found is not None) == candidate_bad
    if isinstance(candidate, str):
        assert outcome.found is not None and candidate in outcome.found.words


def test_a_tally_counts_an_attempt_of_each_arm_that_was_asked() -> None:
    tally = Tally()
    for outcome in (ComparisonOutcome(True, False), ComparisonOutcome(False, True), ComparisonOutcome(True, None)):
        tally.add(outcome)
    assert tally == Tally(candidate_attempts=3, candidate_bad=2, stable_attempts=2, stable_bad=1)


@given(
    per_s=st.floats(0.5, 200),
    pauses=st.lists(st.floats(0, 0.5), min_size=1, max_size=300),
)
def test_the_rate_is_never_exceeded(per_s: float, pauses: list[float]) -> None:
    allowance, now, taken = Allowance(per_s), 100.0, 0
    for pause in pauses:
        now += pause
        taken += allowance.take(now)
    assert taken <= max(1.0, per_s / 4) + per_s * (now - 100.0) + 1e-6


def test_what_is_allowed_is_given() -> None:
    allowance = Allowance(20)
    assert sum(allowance.take(at / 100) for at in range(1000)) == pytest.approx(200, abs=6)
