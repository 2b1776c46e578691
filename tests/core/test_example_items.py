"""Gates send the requests that the node's agent warmed up with, in each form of a warm-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.core.warm_requests import requests
from validators.core.policy import parse_policy
from validators.execution.gates.context import GateContext, example_items

WINDOW = {"name": "input", "data_type": "FP32", "dims": [1, -1]}
STATE = {"name": "state", "data_type": "FP32", "dims": [2, 1, 4]}
RATE = {"name": "sr", "data_type": "INT64", "dims": []}
TEXT = {"name": "text", "data_type": "BYTES", "dims": [1]}


def asked(inputs: list[dict[str, Any]], warmup: list[dict[str, Any]], batch: int = 0) -> dict[str, Any]:
    """The one item that gates ask with; and it is the agent's first request."""
    serving = {"max_batch_size": batch, "inputs": inputs, "outputs": [], "warmup": warmup}
    context = GateContext(
        model="m", release="r1", serving=serving, envelope={}, contract={}, policy=parse_policy({"gates": ["contract"]}),
        server=None, timings={}, progress=lambda done, total: None,  # type: ignore[arg-type]
    )  # fmt: skip
    (item,) = example_items(context, 4)
    first = requests(serving, {})[0]
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
