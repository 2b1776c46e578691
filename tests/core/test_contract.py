"""The contract gate finds what inference servers let pass: names, types, shapes, NaN, outputs too many or too few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from validators.core.contract import Tensor, batch_sizes, compare_answer, compare_declared, judge_contract, tensors_of
from validators.core.inputs import item_arrays, made_up_item, same_shapes, stack
from validators.core.verdict import Verdict

SCORES = Tensor("scores", "FP32", (2,))
GOOD = np.zeros((3, 2), np.float32)


def _kinds(answered: dict[str, Any], batch_size: int | None = 3) -> list[str]:
    return [mismatch.kind for mismatch in compare_answer([SCORES], answered, batch_size=batch_size)]


def test_a_right_answer_has_no_mismatch() -> None:
    assert _kinds({"scores": GOOD}) == []
    assert _kinds({"scores": GOOD[0]}, batch_size=None) == []


@pytest.mark.parametrize(
    ("answered", "kinds"),
    [
        ({}, ["missing"]),
        ({"score": GOOD}, ["extra", "missing"]),
        ({"scores": GOOD, "debug": GOOD}, ["extra"]),
        ({"scores": GOOD.astype(np.float64)}, ["data_type"]),
        ({"scores": GOOD.astype(np.int64)}, ["data_type"]),
        ({"scores": GOOD.astype("S")}, ["data_type"]),
        ({"scores": np.zeros((1, 2), np.float32)}, ["shape"]),
        ({"scores": np.zeros((3, 7), np.float32)}, ["shape"]),
        ({"scores": np.zeros((3,), np.float32)}, ["shape"]),
        ({"scores": np.full((3, 2), np.nan, np.float32)}, ["not_finite"]),
        ({"scores": np.array([[0, 1], [np.inf, 0], [0, 0]], np.float32)}, ["not_finite"]),
    ],
)
def test_every_broken_promise_is_named(answered: dict[str, Any], kinds: list[str]) -> None:
    assert _kinds(answered) == kinds


def test_an_empty_answer_is_a_wrong_shape_also_where_any_size_is_allowed() -> None:
    any_size = Tensor("scores", "FP32", (-1,))
    assert [m.kind for m in compare_answer([any_size], {"scores": np.zeros((1, 0), np.float32)}, batch_size=1)] == [
        "shape"
    ]
    assert compare_answer([any_size], {"scores": np.zeros((1, 9), np.float32)}, batch_size=1) == []


def test_text_in_any_numpy_form_is_bytes() -> None:
    words = Tensor("word", "BYTES", (1,))
    for array in (np.array([[b"a"]], object), np.array([["a"]]), np.array([[b"a"]])):
        assert compare_answer([words], {"word": array}, batch_size=1) == []


def test_what_the_server_says_is_compared_with_what_was_declared() -> None:
    said = [Tensor("scores", "FP64", (2,)), Tensor("extra", "FP32", (1,))]
    found = compare_declared("output", [SCORES, Tensor("label", "INT64", (1,))], said, by="The server")
    assert [(m.tensor, m.kind) for m in found] == [("extra", "extra"), ("label", "missing"), ("scores", "data_type")]
    assert compare_declared("output", [SCORES], [SCORES, said[1]], by="r1", extra_is_wrong=False) == []
    assert compare_declared("input", [Tensor("x", "FP32", (-1,))], [Tensor("x", "FP32", (4,))], by="r1") == []
    assert [
        m.kind for m in compare_declared("input", [Tensor("x", "FP32", (3,))], [Tensor("x", "FP32", (4,))], by="r1")
    ] == ["shape"]


def test_batch_sizes_are_resolved_cut_and_each_tried_once() -> None:
    assert batch_sizes([1, 2, "max"], 16) == (1, 2, 16)
    assert batch_sizes([1, 2, "max"], 2) == (1, 2)
    assert batch_sizes([1, 64], 8) == (1, 8)
    assert batch_sizes([1, 2, "max"], 0) == (1,)


def test_one_broken_promise_fails_and_a_refused_batch_does_too() -> None:
    assert judge_contract([], {1: [], 2: []}, refused={}).verdict is Verdict.PASSED
    bad = compare_answer([SCORES], {}, batch_size=2)
    judged = judge_contract([], {1: [], 2: bad}, refused={8: "MemoryError [server_error]"})
    assert judged.verdict is Verdict.FAILED
    assert judged.reason == "The answer lacks output scores. (1 more)"
    assert judged.evidence["batch_sizes"] == [1, 2, 8]
    assert judged.evidence["mismatches"][1]["kind"] == "refused"


def test_items_become_arrays_of_the_declared_types_and_shapes() -> None:
    declared = [{"name": "text", "data_type": "BYTES", "dims": [1]}, {"name": "x", "data_type": "FP32", "dims": [2]}]
    tensors = tensors_of({"inputs": declared}, "inputs")
    item = item_arrays(tensors, {"text": "hé", "x": [1, 2]})
    assert item["text"].tolist() == ["hé".encode()]
    assert item["x"].dtype == np.float32
    both = stack([item, item], has_batch_axis=True)
    assert both["text"].shape == (2, 1)
    assert both["x"].shape == (2, 2)
    assert same_shapes(item, item)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"x": [1, 2]}, "the input text has no value"),
        ({"text": "a", "x": [1, 2], "y": 1}, "there is no input y"),
        ({"text": "a", "x": [1, 2, 3]}, r"has the shape \[3\], declared is \[2\]"),
        ({"text": 5, "x": [1, 2]}, "the value of text is not BYTES"),
        ({"text": "a", "x": "b"}, "the value of x is not FP32"),
    ],
)
def test_values_that_do_not_fit_name_their_input(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        item_arrays([Tensor("text", "BYTES", (1,)), Tensor("x", "FP32", (2,))], values)


def test_a_made_up_item_fits_any_declaration() -> None:
    tensors = [
        Tensor("a", "BYTES", (1,)),
        Tensor("b", "FP16", (-1, 3)),
        Tensor("c", "INT64", (4,)),
        Tensor("d", "BOOL", ()),
    ]
    item = made_up_item(tensors, seed=0)
    assert [item[name].shape for name in "abcd"] == [(1,), (1, 3), (4,), ()]
    assert item["b"].dtype == np.float16


def test_a_model_without_a_batch_axis_takes_one_item() -> None:
    item = made_up_item([Tensor("x", "FP32", (2,))], seed=0)
    assert stack([item], has_batch_axis=False)["x"].shape == (2,)
    with pytest.raises(ValueError, match="one item per request"):
        stack([item, item], has_batch_axis=False)
