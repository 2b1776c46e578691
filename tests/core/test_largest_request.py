"""Requests at the edge of `max_request_bytes`: how large they are, and what each must bring, by what else is declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.servers.core.made_up import made_up_item
from validators.core.contract import Tensor
from validators.core.edges import Expected, judge_edges
from validators.core.inputs import Arrays
from validators.core.largest_request import ByteEdges, byte_edges
from validators.core.verdict import Judgement, Verdict
from validators.execution.runners.contract import gateway_bytes

TEXT = Tensor("text", "BYTES", (1,))
IDS = Tensor("ids", "INT64", (-1,))
MASK = Tensor("mask", "INT64", (-1,))
IMAGE = Tensor("image", "FP32", (3, -1, -1))
ROW = Tensor("x", "FP32", (4,))
ANSWERED, EITHER = Expected.ANSWERED, Expected.EITHER


def size_of(request: Arrays) -> int:
    return gateway_bytes("model", request)


def made(*tensors: Tensor, max_batch_size: int = 4, **limits: Any) -> ByteEdges:
    example = made_up_item(tensors, seed=0)
    return byte_edges(tensors, example, limits, max_batch_size=max_batch_size, size_of=size_of)


def told(found: ByteEdges) -> list[tuple[int, Expected]]:
    return [(size_of(edge.inputs), edge.expected) for edge in found.edges]


def test_nothing_is_asked_where_nothing_is_declared() -> None:
    assert made(TEXT) == ByteEdges()


@pytest.mark.parametrize("limit", [200, 16_000, 16_470, 70_001, 2_100_000])
def test_a_text_of_any_length_is_one_byte_short_right_and_one_too_long(limit: int) -> None:
    found = made(TEXT, max_request_bytes=limit)
    assert told(found) == [(limit - 1, ANSWERED), (limit, ANSWERED), (limit + 1, EITHER)]
    assert {edge.inputs["text"].shape for edge in found.edges} == {(1, 1)}
    assert f"a request of {limit} bytes" in found.edges[1].name and str(limit) in found.edges[2].name


def test_a_text_beyond_its_tokens_may_end_either_way() -> None:
    found = made(TEXT, max_request_bytes=50_000, max_input_tokens=128)
    assert told(found) == [(49_999, EITHER), (50_000, EITHER), (50_001, EITHER)]


def test_texts_of_as_many_tokens_as_declared_make_it_together_where_a_batch_of_them_can() -> None:
    found = made(TEXT, max_request_bytes=4_000, max_input_tokens=512, max_batch_size=4)
    shapes = [edge.inputs["text"].shape for edge in found.edges]
    assert shapes == [(2, 1)] * len(shapes)
    *under, beyond = told(found)
    assert [expected for _, expected in under] == [ANSWERED] * len(under) and beyond[1] is EITHER
    assert 4_000 - 2 < under[-1][0] <= 4_000 < beyond[0] <= 4_002


def test_sizes_that_have_to_fit_each_other_grow_together() -> None:
    found = made(IDS, MASK, max_request_bytes=4_000, max_input_dims={"ids": [1000], "mask": [1000]})
    assert [edge.expected for edge in found.edges] == [ANSWERED, EITHER]
    for edge in found.edges:
        assert edge.inputs["ids"].shape == edge.inputs["mask"].shape
    (under, _), (beyond, _) = told(found)
    assert 4_000 - 16 < under <= 4_000 < beyond <= 4_016


def test_an_image_keeps_its_proportions() -> None:
    found = made(IMAGE, max_request_bytes=100_000, max_input_dims={"image": [3, 100, 200]})
    shapes = [edge.inputs["image"].shape for edge in found.edges]
    assert all(abs(shape[3] / shape[2] - 2) < 0.05 for shape in shapes) and {shape[1] for shape in shapes} == {3}
    sizes = told(found)
    assert sizes[-2][0] <= 100_000 < sizes[-1][0]


def test_sizes_beyond_what_is_declared_may_end_either_way() -> None:
    found = made(IDS, max_request_bytes=100_000, max_input_dims={"ids": [100]})
    assert {expected for _, expected in told(found)} == {EITHER}
    assert found.edges[0].inputs["ids"].shape[0] == 1


def test_inputs_of_one_size_make_it_by_their_number_or_not_at_all() -> None:
    found = made(ROW, max_request_bytes=200, max_batch_size=64)
    (under, first), (beyond, second) = told(found)
    assert under <= 200 < beyond and (first, second) == (ANSWERED, EITHER)
    assert found.edges[1].inputs["x"].shape[0] == found.edges[0].inputs["x"].shape[0] + 1
    most = size_of({"x": np.zeros((4, 4), np.float32)})
    cannot = made(ROW, max_request_bytes=5_000, max_batch_size=4)
    assert not cannot.edges and not cannot.known
    assert (
        cannot.why_none == f"a request of the declared inputs has {most} bytes at most, and max_request_bytes is 5000"
    )
    exact = made(ROW, max_request_bytes=most, max_batch_size=4)
    assert told(exact)[-1] == (most, ANSWERED), "one more is refused as too large a batch, which is asked elsewhere"


def test_without_a_batch_axis_there_is_one_item() -> None:
    assert made(ROW, max_request_bytes=5_000, max_batch_size=0).why_none
    found = made(TEXT, max_request_bytes=300, max_batch_size=0)
    assert [edge.inputs["text"].shape for edge in found.edges] == [(1,)] * 3


def test_a_release_of_which_gateways_refuse_every_request_fails() -> None:
    found = made(ROW, max_request_bytes=20)
    assert [one.fault for one in found.known] == ["refused"] and not found.edges
    judged = judge_edges(Judgement(Verdict.PASSED, "As declared.", {}), found.known)
    assert judged.verdict is Verdict.FAILED
    assert "gateways let 20 through" in judged.reason


def test_what_could_not_be_asked_stands_in_the_evidence() -> None:
    passed = Judgement(Verdict.PASSED, "As declared.", {})
    assert judge_edges(passed, [], not_tried="too small").evidence["edges_not_tried"] == "too small"
    assert "edges_not_tried" not in judge_edges(passed, []).evidence
