"""Requests at and beyond the edge: each declared input yields those that must be refused, and outcomes are judged by what was promised."""

from __future__ import annotations

import numpy as np
import pytest

from serving.servers.core.made_up import made_up_item
from validators.core.contract import Tensor
from validators.core.edges import Edge, Expected, Outcome, edges_of, judge_edges
from validators.core.verdict import Judgement, Verdict

TEXT = Tensor("text", "BYTES", (1,))
IDS = Tensor("ids", "INT64", (-1,))
MASK = Tensor("mask", "INT64", (-1,))
IMAGE = Tensor("image", "FP32", (3, -1, -1))


def edges(
    *tensors: Tensor, limits: dict[str, object] | None = None, max_batch_size: int = 4, length: int = 1
) -> dict[str, Edge]:
    example = {name: np.resize(value, [length if d == -1 else d for d in dims]) for (name, value), dims in zip(
        made_up_item(tensors, seed=0).items(), [tensor.dims for tensor in tensors], strict=True
    )}  # fmt: skip
    return {edge.name: edge for edge in edges_of(tensors, example, limits or {}, max_batch_size=max_batch_size)}


def test_every_wrong_name_type_and_shape_of_each_input_must_be_refused() -> None:
    found = edges(TEXT, IMAGE)
    refused = {name for name, edge in found.items() if edge.expected is Expected.REFUSED}
    assert refused == {
        "a batch of 5", "a request with an unknown input", "a request without text", "text of another data type",
        "text with an axis too many", "text of another shape", "a request without image", "image of another data type",
        "image with an axis too many", "image of another shape",
    }  # fmt: skip
    assert found["image of another shape"].inputs["image"].shape == (1, 4, 1, 1)
    assert found["text of another data type"].inputs["text"].dtype == np.int32
    assert found["a batch of 5"].inputs["image"].shape == (5, 3, 1, 1)
    assert set(found["a request without text"].inputs) == {"image"}


def test_without_a_batch_axis_no_batch_is_too_large() -> None:
    found = edges(TEXT, max_batch_size=0)
    assert not any("batch" in name for name in found)
    assert found["text of another shape"].inputs["text"].shape == (2,)


def test_an_input_whose_every_size_may_differ_has_no_wrong_size() -> None:
    assert "ids of another shape" not in edges(IDS)


def test_limits_are_reached_alone_and_in_a_full_batch_and_passed_by_one() -> None:
    limits = {"max_input_dims": {"ids": [16], "mask": [16]}}
    found = edges(IDS, MASK, limits=limits, length=3)
    assert found["an input of max_input_dims"].inputs["ids"].shape == (1, 16)
    assert found["an input of max_input_dims"].expected is Expected.ANSWERED
    assert found["a batch of 4 inputs of max_input_dims"].inputs["mask"].shape == (4, 16)
    assert found["an input beyond max_input_dims"].inputs["ids"].shape == (1, 17)
    assert found["an input beyond max_input_dims"].expected is Expected.EITHER
    assert found["an input of the least size"].inputs["ids"].shape == (1, 1)


def test_a_text_is_tried_empty_and_with_more_tokens_than_declared() -> None:
    found = edges(TEXT, limits={"max_input_tokens": 100})
    words = {name: len(edge.inputs["text"].ravel()[0].split()) for name, edge in found.items() if "max_input" in name}
    assert words["an input of max_input_tokens"] < 100 < words["an input beyond max_input_tokens"]
    assert found["an empty text"].inputs["text"].ravel()[0] == b""


@pytest.mark.parametrize(
    ("expected", "reason", "unwell", "fault"),
    [
        (Expected.REFUSED, "rejected", "", ""),
        (Expected.REFUSED, "", "", "let_in"),
        (Expected.REFUSED, "server_error", "", "not_refused"),
        (Expected.REFUSED, "timeout", "", "not_refused"),
        (Expected.REFUSED, "rejected", "Stub process is not healthy.", "unwell"),
        (Expected.ANSWERED, "", "", ""),
        (Expected.ANSWERED, "rejected", "", "refused"),
        (Expected.EITHER, "", "", ""),
        (Expected.EITHER, "server_error", "", ""),
        (Expected.EITHER, "timeout", "", "hung"),
    ],
)
def test_what_an_outcome_says(expected: Expected, reason: str, unwell: str, fault: str) -> None:
    outcome = Outcome(Edge("an empty text", {}, expected), reason, "No.", unwell)
    assert outcome.fault == fault
    judged = judge_edges(Judgement(Verdict.PASSED, "As declared.", {"batch_sizes": [1]}), [outcome])
    assert judged.verdict is (Verdict.FAILED if fault else Verdict.PASSED)
    assert [one["kind"] for one in judged.evidence["mismatches"]] == ([fault] if fault else [])
    assert judged.evidence["edges"] == [
        {"request": "an empty text", "expected": expected.value, "outcome": reason or "answered"}
    ]
    assert judged.evidence["batch_sizes"] == [1]
    assert not fault or "n empty text" in judged.reason
