"""Gates send the requests that the node's agent warmed up with, in each form of a warm-up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.servers.core.warm_requests import requests
from validators.core.contract import Tensor
from validators.core.policy import parse_policy
from validators.execution.gates.context import GateContext, example_items
from validators.execution.runners.contract import try_inputs

WINDOW = {"name": "input", "data_type": "FP32", "dims": [1, -1]}
STATE = {"name": "state", "data_type": "FP32", "dims": [2, 1, 4]}
RATE = {"name": "sr", "data_type": "INT64", "dims": []}
TEXT = {"name": "text", "data_type": "BYTES", "dims": [1]}


def items_of(
    inputs: list[dict[str, Any]], warmup: list[dict[str, Any]], batch: int = 0, most: int = 8
) -> list[dict[str, Any]]:
    serving = {"max_batch_size": batch, "inputs": inputs, "outputs": [], "warmup": warmup}
    context = GateContext(
        model="m", release="r1", serving=serving, envelope={}, contract={}, policy=parse_policy({"gates": ["contract"]}),
        server=None, timings={}, progress=lambda done, total: None,  # type: ignore[arg-type]
    )  # fmt: skip
    return example_items(context, most)


def asked(inputs: list[dict[str, Any]], warmup: list[dict[str, Any]], batch: int = 0) -> dict[str, Any]:
    """The first item that gates ask with; and it is the agent's first request."""
    (item,) = items_of(inputs, warmup, batch, most=1)
    first = requests({"max_batch_size": batch, "inputs": inputs, "warmup": warmup}, {})[0]
    for name, value in item.items():
        assert value.shape == (first[name].shape[1:] if batch else first[name].shape)
    return item


def test_null_has_an_input_made_up_and_the_others_are_as_they_are_written() -> None:
    item = asked([WINDOW, STATE, RATE], [{"inputs": {"input": [[0.5] * 9], "state": None, "sr": 16_000}}])
    assert item["input"].tolist() == [[0.5] * 9] and not item["state"].any() and item["sr"].tolist() == [16_000]


def test_a_plain_number_fills_an_input() -> None:
    item = asked([STATE], [{"inputs": {"state": 0.25}}])
    assert item["state"].shape == (2, 1, 4) and (item["state"] == 0.25).all()


@pytest.mark.parametrize("value", [[[1.0, 2.0]], [[[1.0, 2.0]], [[3.0, 4.0]]]])
def test_of_a_whole_batch_the_first_item_is_asked(value: Any) -> None:
    item = asked([WINDOW], [{"batch_size": 2, "inputs": {"input": value}}], batch=4)
    assert item["input"].tolist() == [[1.0, 2.0]]


def test_texts_are_bytes() -> None:
    item = asked([TEXT], [{"inputs": {"text": "年"}}], batch=4)
    assert item["text"].tolist() == ["年".encode()] and item["text"].dtype == np.dtype(object)


def test_the_items_of_all_warm_up_requests_are_asked_each_once() -> None:
    """A detector whose first warm-up input has no hit is judged by the others too."""
    warmup = [
        {"batch_size": 2, "inputs": {"input": [[[0.0]], [[1.0]]]}},
        {"batch_size": 4, "inputs": {"input": [[2.0]]}},
        {"batch_size": 1, "inputs": {"input": [[[0.0]]]}},
    ]
    found = [float(item["input"][0, 0]) for item in items_of([WINDOW], warmup, batch=4)]
    assert found == [0.0, 2.0, 1.0]
    assert [float(item["input"][0, 0]) for item in items_of([WINDOW], warmup, batch=4, most=2)] == [0.0, 2.0]


def test_a_model_without_a_batch_axis_has_one_item_for_each_warm_up_request() -> None:
    warmup = [{"inputs": {"input": [[value] * 3]}} for value in (0.0, 1.0)]
    assert [item["input"].tolist() for item in items_of([WINDOW], warmup)] == [[[0.0] * 3], [[1.0] * 3]]


def test_a_detector_that_answers_zeros_without_a_hit_is_judged_by_its_second_warm_up_request() -> None:
    class Detector:
        def infer(self, model: str, inputs: dict[str, Any], *, timeout_s: float) -> Any:
            is_hit = np.abs(inputs["input"] - 3.5).max(axis=(1, 2)) < 0.1
            return SimpleNamespace(outputs={"boxes": is_hit[:, None] * np.ones((1, 2), np.float32)})

    items = items_of([WINDOW], [{"inputs": {"input": [[0.0]]}}, {"inputs": {"input": [[3.5]]}}], batch=1)
    tensors = (Tensor("input", "FP32", (1, -1)),)
    use = try_inputs(
        Detector(),  # type: ignore[arg-type]
        "m",
        tensors,
        items,
        {},
        has_batch_axis=True,
        timeout_s=60,
        progress=lambda: None,
    )
    assert use.state == "used"
