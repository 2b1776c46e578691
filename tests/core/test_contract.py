"""The contract gate finds what inference servers let pass: names, types, shapes, NaN, outputs too many or too few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.servers.core.made_up import NUMPY_TYPES, SAMPLE_TEXT, made_up_item, made_up_items
from validators.core.contract import (
    Tensor,
    batch_sizes,
    compare_answer,
    compare_declared,
    judge_contract,
    tensors_of,
)
from validators.core.inputs import (
    item_arrays,
    longest_item,
    stack,
)
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
    with pytest.raises(ValueError, match="the value of n is not INT64: .* too large"):
        item_arrays([Tensor("n", "INT64", (1,))], {"n": [2**70]})


@pytest.mark.parametrize(
    ("kind", "value", "became"),
    [
        ("UINT8", 300, "300 would become 44"), ("UINT8", [[1, -1]], "-1 would become 255"), ("INT8", 128, "128 would become -128"),
        ("INT64", 2**63, "9223372036854775808 would become -9"), ("UINT64", -1, "-1 would become 18446744073709551615"),
        ("INT32", 1.5, "1.5 would become 1"), ("INT32", float("nan"), "nan would become"), ("BOOL", 5, "5 would become True"),
        ("FP16", 70000, "70000 would become inf"), ("FP32", -1e39, r"-1e\+39 would become -inf"),
    ],
)  # fmt: skip
def test_a_number_that_its_type_cannot_hold_is_refused_and_not_made_another(kind: str, value: Any, became: str) -> None:
    with pytest.raises(ValueError, match=f"the value of n is not {kind}: {became}"):
        item_arrays([Tensor("n", kind, (1, -1))], {"n": value})


@pytest.mark.parametrize(
    ("kind", "value"),
    [("UINT8", 255), ("INT8", -128), ("INT32", 2.0), ("UINT64", 2**64 - 1), ("BOOL", 1), ("BOOL", True), ("FP16", 0.1),
     ("FP32", float("inf")), ("FP32", 2**40)],
)  # fmt: skip
def test_a_number_that_its_type_can_hold_stays_what_it_is(kind: str, value: Any) -> None:
    assert item_arrays([Tensor("n", kind, (1,))], {"n": value})["n"].item() == pytest.approx(value, rel=1e-3)


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


# --- what is told of a broken promise, and values of one element ------------------------------------------------------


def test_a_broken_promise_is_told_with_what_came_and_what_was_declared() -> None:
    wide = np.full((3, 2), np.nan, np.float64)
    wide[0, 0] = 1.0
    found = compare_answer([SCORES], {"scores": wide}, batch_size=3)
    assert [mismatch.message for mismatch in found] == [
        "Output scores came as FP64, declared is FP32.",
        "Output scores holds 5 NaN or infinite of 6 values.",
    ]
    (shape,) = compare_answer([SCORES], {"scores": np.zeros((3, 7), np.float32)}, batch_size=3)
    assert (shape.message, shape.batch_size) == ("Output scores came as [3, 7], declared is [3, 2].", 3)
    (shape,) = compare_answer([SCORES], {"scores": np.zeros(7, np.float32)}, batch_size=None)
    assert (shape.message, shape.batch_size) == ("Output scores came as [7], declared is [2].", None)


@pytest.mark.parametrize("data_type", ["BOOL", "UINT8", "INT16", "FP16", "FP32", "FP64"])
def test_every_type_of_the_protocol_is_told_by_its_own_word(data_type: str) -> None:
    (found,) = compare_answer([Tensor("x", "INT64", (1,))], {"x": np.zeros(1, NUMPY_TYPES[data_type])}, batch_size=None)
    assert found.message == f"Output x came as {data_type}, declared is INT64."
    bf16 = Tensor("x", "BF16", (1,))
    assert compare_answer([bf16], {"x": np.zeros(1, np.float32)}, batch_size=None) == []


def test_an_empty_answer_is_right_where_nothing_is_declared_to_come() -> None:
    none = Tensor("x", "FP32", (0,))
    assert compare_answer([none], {"x": np.zeros((2, 0), np.float32)}, batch_size=2) == []


def test_the_reason_tells_how_many_more_promises_were_broken() -> None:
    bad = compare_answer([SCORES], {}, batch_size=2)
    assert judge_contract(bad, {1: []}, refused={}).reason == "The answer lacks output scores."
    three = judge_contract(bad, {2: bad}, refused={8: "no"})
    assert three.reason == "The answer lacks output scores. (2 more)"
    assert three.evidence["mismatches"][2] == {
        "kind": "refused", "tensor": "", "message": "A batch of 8 was not answered: no", "batch_size": 8,
    }  # fmt: skip
    passed = judge_contract([], {2: [], 1: []}, refused={})
    assert passed.reason == "Names, data types, shapes and numbers are as declared at batch sizes 1, 2."


def test_a_scalar_stands_for_one_element_of_any_rank() -> None:
    tensors = [Tensor("a", "FP32", (1,)), Tensor("b", "FP32", (-1, 1)), Tensor("c", "INT64", ())]
    item = item_arrays(tensors, {"a": 5, "b": 6, "c": 7})
    assert [item[name].shape for name in "abc"] == [(1,), (1, 1), ()]
    for dims in ((2,), (1, 2), (0,)):
        with pytest.raises(ValueError, match=r"has the shape \[\]"):
            item_arrays([Tensor("a", "FP32", dims)], {"a": 5})


def test_a_dimension_of_any_size_takes_every_size_and_a_fixed_one_only_its_own() -> None:
    any_rows = Tensor("x", "FP32", (-1, 2))
    assert item_arrays([any_rows], {"x": [[1, 2]] * 5})["x"].shape == (5, 2)
    with pytest.raises(ValueError, match=r"\[5, 3\], declared is \[-1, 2\]"):
        item_arrays([any_rows], {"x": [[1, 2, 3]] * 5})
    with pytest.raises(ValueError, match=r"\[3\], declared is \[1\]"):
        item_arrays([Tensor("x", "FP32", (1,))], {"x": [1, 2, 3]})


def test_every_text_of_an_item_is_kept() -> None:
    item = item_arrays([Tensor("text", "BYTES", (-1,))], {"text": ["a", "b", b"c"]})
    assert item["text"].tolist() == [b"a", b"b", b"c"]


def test_made_up_numbers_are_small_around_nothing_and_the_same_for_the_same_seed() -> None:
    tensor = Tensor("x", "FP32", (4000,))
    made = made_up_item([tensor], seed=3)["x"]
    assert abs(float(made.mean())) < 0.1 and float(made.std()) == pytest.approx(1, abs=0.05)
    assert (made == made_up_item([tensor], seed=3)["x"]).all() and (made != made_up_item([tensor], seed=4)["x"]).any()
    assert made_up_item([Tensor("n", "INT32", (3,))], seed=0)["n"].tolist() == [0, 0, 0]
    assert made_up_item([Tensor("t", "BYTES", (1,))], seed=0)["t"].tolist() == [SAMPLE_TEXT.encode()]


def test_made_up_items_keep_to_the_sizes_and_values_that_are_declared() -> None:
    tensors = [Tensor("ids", "INT64", (-1,)), Tensor("mask", "INT8", (-1,)), Tensor("x", "FP32", (2, -1))]
    sizes = {"ids": [512], "mask": [512], "x": [2, 40]}
    limits = {"max_input_dims": sizes, "input_values": {"ids": [5, 7], "x": [-2, 10.5]}}
    items = made_up_items(tensors, limits, most=64)
    assert [len(item["ids"]) for item in items] == [256, 64, 448, 128, 384, 192, 320]
    assert [item["x"].shape for item in items[:2]] == [(2, 20), (2, 5)]
    for item in items:
        assert (
            set(item["ids"].tolist()) == {5, 6, 7} and not item["mask"].any() and len(item["mask"]) == len(item["ids"])
        )
        assert item["x"].min() >= -2 and 4 < item["x"].max() <= 10.5
        assert (item["ids"].dtype, item["mask"].dtype, item["x"].dtype) == (np.int64, np.int8, np.float32)
    assert len(made_up_items(tensors, limits, most=1)) == 1
    (plain,) = made_up_items(tensors, {}, most=64)
    assert [plain[name].shape for name in ("ids", "mask", "x")] == [(1,), (1,), (2, 1)] and plain["ids"].tolist() == [0]
    some = {"max_input_dims": {"ids": [512]}}  # one that may have to be as long as another
    assert [item["ids"].shape for item in made_up_items(tensors, some, most=64)] == [(1,)]
    whole = made_up_items([Tensor("n", "UINT64", ())], {"input_values": {"n": [0, 2**64 - 1]}}, most=4)
    assert len({item["n"].item() for item in whole}) == 4 and whole[0]["n"].shape == ()


@pytest.mark.parametrize(("tokens", "words"), [(1, 1), (5, 1), (6, 2), (128, 124)])
def test_a_text_as_long_as_declared_leaves_room_for_four_tokens_but_has_a_word(tokens: int, words: int) -> None:
    text = Tensor("text", "BYTES", (1,))
    longest, _ = longest_item([text], {"max_input_tokens": tokens}, made_up_item([text], seed=0))
    assert longest["text"][0].split() == [b"the"] * words
