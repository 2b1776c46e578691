"""Warm-up values of release.yaml: each kind of number, each shape, and the agreement with the agent that sends them."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.serving import DATA_TYPES
from registry.core.spec import read_spec
from registry.core.warmup_values import sent_shape, value_problem
from serving.targets.agent.warmup import array
from tests.support.worlds.registry_samples import release_yaml

IN_RANGE: dict[str, list[Any]] = {
    "BOOL": [True, False], "BYTES": ["", "warm", "日本語"], "FP16": [0, -65504, 1.5], "FP32": [3.4e38, -1, 0.1],
    "FP64": [1.7e308, 2**52], "INT8": [-128, 127], "INT16": [-(2**15), 2**15 - 1], "INT32": [-(2**31), 2**31 - 1, 3.0],
    "INT64": [-(2**53) + 1, 2**53 - 1], "UINT8": [0, 255], "UINT16": [65_535], "UINT32": [2**32 - 1], "UINT64": [2**53 - 1],
}  # fmt: skip
OUT_OF_RANGE: dict[str, list[Any]] = {
    "BOOL": [1, "true", 0.0], "BYTES": [1, True, 0.5], "FP16": [65_520, "0", True], "FP32": [3.5e38, "zero", False],
    "FP64": ["1", True], "INT8": [128, -129, 1.5, "1", True], "INT16": [2**15, 0.5], "INT32": [2**31, "zero", 1e-9],
    "INT64": [1.5, "1", 2**53], "UINT8": [-1, 256], "UINT16": [65_536, -1], "UINT32": [2**32], "UINT64": [-1, True, 2**53],
}  # fmt: skip


def tensor(data_type: str, dims: list[int]) -> dict[str, Any]:
    return {"name": "x", "data_type": data_type, "dims": dims}


def test_every_data_type_is_in_the_tables() -> None:
    assert set(IN_RANGE) == set(OUT_OF_RANGE) == set(DATA_TYPES) - {"BF16"}


@pytest.mark.parametrize("data_type", sorted(IN_RANGE))
def test_the_range_of_a_data_type(data_type: str) -> None:
    for value in IN_RANGE[data_type]:
        assert value_problem([value], tensor(data_type, [1]), 1) is None, value
        array([value], tensor(data_type, [1]), 1)
    for value in OUT_OF_RANGE[data_type]:
        for given_value in (value, [value], [[IN_RANGE[data_type][0]], [value]]):
            problem = value_problem(given_value, tensor(data_type, [1]), 2)
            assert problem is not None and data_type in problem[0] and problem[1].startswith("Write "), given_value


def test_a_value_of_bf16_is_not_judged_because_the_data_type_is_refused() -> None:
    changes = {"serving.inputs": [tensor("BF16", [1])], "serving.warmup": [{"inputs": {"x": [1.0]}}]}
    _, problems = read_spec(release_yaml(changes))
    assert [one.field for one in problems] == ["serving.inputs[0].data_type"]


@pytest.mark.parametrize(
    ("value", "dims", "batch_size", "is_right"),
    [
        (0, [3], 2, True), ([1, 2, 3], [3], 2, True), ([[1, 2, 3], [4, 5, 6]], [3], 2, True), ([1, 2], [3], 2, False),
        ([[1, 2, 3]], [3], 2, False), ([1, 2], [1], 2, True), ([1, 2], [-1], 2, True), ([1, 2, 3], [1], 2, False),
        ([[1, 2], [3]], [-1], 2, False), ([1, [2]], [-1], 0, False), ([1, 2], [-1], 0, True), ([[1], [2]], [1], 0, False),
        ([], [-1], 1, True), ([], [1], 1, False), (7, [], 2, True), ([7, 8], [], 2, True), ([7], [], 2, True), (7, [], 0, True),
        ([[7], [8]], [], 2, True), ([[7]], [], 1, True), ([[7], [8]], [], 3, False), ([7], [], 0, True), ([[7]], [], 0, False),
    ],
)  # fmt: skip
def test_the_shape_of_a_value(value: Any, dims: list[int], batch_size: int, is_right: bool) -> None:
    problem = value_problem(value, tensor("INT32", dims), batch_size)
    assert (problem is None) is is_right, problem
    if is_right:
        array(value, tensor("INT32", dims), batch_size)
    else:
        with pytest.raises(ValueError, match="shape|array element"):
            array(value, tensor("INT32", dims), batch_size)


@pytest.mark.parametrize("data_type", ["INT64", "UINT64", "INT32"])
@pytest.mark.parametrize("end", [0, 1])
def test_the_ends_of_the_stated_range_are_taken(data_type: str, end: int) -> None:
    problem = value_problem(1.5, tensor(data_type, [1]), 1)
    assert problem is not None
    stated = int(re.findall(r"-?\d+", problem[1])[end])
    changes = {"serving.inputs": [tensor(data_type, [1])], "serving.warmup": [{"inputs": {"x": stated}}]}
    assert read_spec(release_yaml(changes))[1] == []


@pytest.mark.parametrize(
    ("shape", "dims", "batch_size", "sent"),
    [
        ((), [3, -1], 2, (2, 3, 1)), ((), [3], 0, (3,)), ((2,), [-1], 2, (2, 2)), ((2,), [1], 2, (2, 1)), ((3,), [3], 2, (2, 3)),
        ((2, 3), [3], 2, (2, 3)), ((0,), [-1], 2, (2, 0)), ((2,), [3], 2, None), ((2, 1, 1), [1, 1], 2, (2, 1, 1)),
        ((2,), [1, 1], 2, (2, 1, 1)), ((2,), [1], 0, None),
    ],
)  # fmt: skip
def test_the_shape_that_is_sent(shape: Any, dims: list[int], batch_size: int, sent: Any) -> None:
    assert sent_shape(shape, dims, batch_size) == sent
    if sent is not None:
        value = np.arange(math.prod(shape)).reshape(shape)
        assert array(value.tolist(), tensor("INT32", dims), batch_size).shape == sent


_VALUES = st.recursive(
    st.booleans() | st.integers(-300, 70_000) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(_VALUES, st.sampled_from(sorted(IN_RANGE)), st.lists(st.sampled_from([-1, 1, 2]), max_size=2), st.integers(0, 2))
def test_what_passes_here_never_fails_at_the_warm_up(
    value: Any, data_type: str, dims: list[int], batch_size: int
) -> None:
    if value_problem(value, tensor(data_type, dims), batch_size) is None:
        assert isinstance(array(value, tensor(data_type, dims), batch_size), np.ndarray)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("zero", "'zero' is not FP32."),
        ([0.5, "x"], "'x' is not FP32."),
        ([0.5, 0.5, 0.5], "it has the shape [3]."),
        ("a\0b", "the value cannot be written as JSON exactly."),
        ([None], "null is no element of a tensor."),
        ({"a": 1}, "an object is no element of a tensor."),
    ],
)
def test_one_mistake_of_a_value_is_one_problem(value: Any, says: str) -> None:
    document = release_yaml(
        {
            "serving.inputs": [{"name": "x", "data_type": "FP32", "dims": [2]}],
            "serving.warmup": [{"inputs": {"x": 0}}, {"inputs": {"x": value}}],
        }
    )
    _, problems = read_spec(document)
    assert [(one.field, one.message) for one in problems] == [("serving.warmup[1].inputs.x", says)]
    assert problems[0].fix
