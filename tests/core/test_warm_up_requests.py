"""Warm-up requests that an agent makes up, wholly or in part."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving.targets.agent.warmup import requests

FLOATS = [{"name": name, "data_type": "FP32", "dims": [-1]} for name in ("x", "y")]
SERVING: dict[str, Any] = {
    "max_batch_size": 8,
    "inputs": [*FLOATS, {"name": "text", "data_type": "BYTES", "dims": [1]}],
}
LIMITS = {"max_input_dims": {"x": [512], "y": [512]}, "input_values": {"y": [5, 6]}}


def test_where_nothing_is_said_of_values_they_are_zeros_and_one_text() -> None:
    """A release that refuses negative numbers was let in with these, and runs."""
    for limits in ({}, LIMITS):
        (asked,) = requests(SERVING, limits)
        assert set(asked["x"].ravel()) == {0} and asked["x"].dtype == np.float32
        assert asked["text"].tolist() == [[b"warm-up"]]
    assert asked["x"].shape == (1, 64) and 5 <= asked["y"].min() < asked["y"].max() <= 6


def test_an_input_that_is_null_is_made_up() -> None:
    ids = {"name": "ids", "data_type": "INT64", "dims": [-1]}
    serving = {**SERVING, "inputs": [*SERVING["inputs"], ids]}
    given = {"batch_size": 2, "inputs": {"ids": None, "x": None, "text": None, "y": [7, 8]}}
    (asked,) = requests({**serving, "warmup": [given]}, {})
    assert asked["ids"].tolist() == asked["x"].tolist() == [[0], [0]]
    assert asked["text"].tolist() == [[b"warm-up"]] * 2 and asked["y"].tolist() == [[7, 8], [7, 8]]
