"""Tensors of rank 0 and 1, with and without a batch axis: release.yaml, config.pbtxt, contracts, values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ledger.core.errors import Invalid
from registry.adapters import pbtxt
from registry.core.pbtxt import render
from registry.core.schema import Problem
from registry.core.serving import against_contract, sent_dims
from registry.core.spec import Spec, parse_spec
from serving.targets.agent import warmup
from serving.targets.core.static_servers import differences
from tests.support.worlds.registry_samples import release_yaml
from validators.core.contract import compare_answer, tensors_of
from validators.core.inputs import item_arrays, stack

SCORE = {"name": "score", "data_type": "FP32", "dims": []}
RATE = {"name": "sr", "data_type": "INT64", "dims": []}


def spec(*, batch: int) -> Spec:
    return parse_spec(
        release_yaml(
            {
                "serving.max_batch_size": batch,
                "serving.dynamic_batching": None,
                "serving.inputs": [RATE],
                "serving.outputs": [SCORE],
                "serving.warmup": [{"inputs": {"sr": 16_000}}],
                "envelope.limits": {},
            }
        )
    )


@pytest.mark.parametrize("batch", [0, 8])
def test_one_number_for_each_item_is_declared_and_its_config_reads_as_the_same(batch: int) -> None:
    made = spec(batch=batch)
    text = render(made.serving, "sentiment")
    assert ("dims: [1] reshape { shape: [] }" in text) is (batch > 0) and "dims: [1]" in text
    pbtxt.check(text.encode(), made, "config.pbtxt")


@pytest.mark.parametrize(
    ("batch", "dims", "fault"),
    [
        (8, "dims: [1]", "input[0].dims is [1], and serving.inputs[0].dims in release.yaml is []"),
        (8, "dims: [1] reshape { shape: [1, 1] }", "release.yaml has no place for input[0].reshape"),
        (8, "dims: [4] reshape { shape: [] }", "release.yaml has no place for input[0].reshape"),
        (0, "dims: [1]", ""),
        (0, "dims: [1] reshape { shape: [] }", ""),
        (0, "dims: [2]", "input[0].dims is [2], and serving.inputs[0].dims in release.yaml is []."),
        (0, 'dims: [1] } input { name: "y" data_type: TYPE_INT64 dims: [1]', "serving.inputs in release.yaml is ["),
    ],
)
def test_a_config_that_comes_along_says_the_same_or_is_refused(batch: int, dims: str, fault: str) -> None:
    text = f'max_batch_size: {batch} input {{ name: "sr" data_type: TYPE_INT64 {dims} }}'
    if not fault:
        return pbtxt.check(text.encode(), spec(batch=batch), "config.pbtxt")
    with pytest.raises(Invalid) as caught:
        pbtxt.check(text.encode(), spec(batch=batch), "config.pbtxt")
    assert fault in str(caught.value)
    return None


@pytest.mark.parametrize("own", [[], [1]])
@pytest.mark.parametrize("theirs", ["dims: [1]", "dims: [1] reshape { shape: [] }"])
def test_without_a_batch_axis_both_ways_to_write_one_number_agree(own: list[int], theirs: str) -> None:
    changes = {
        "serving.max_batch_size": 0,
        "serving.dynamic_batching": None,
        "serving.inputs": [{**RATE, "dims": own}],
        "serving.outputs": [{**SCORE, "dims": own}, {"name": "more", "data_type": "FP32", "dims": [3]}],
        "serving.warmup": [],
        "envelope.limits": {},
    }
    made = parse_spec(release_yaml(changes))
    text = (
        f'output {{ name: "score" data_type: TYPE_FP32 {theirs} }} output {{ name: "more" data_type: TYPE_FP32 dims: '
    )
    pbtxt.check(f"{text}[3] }}".encode(), made, "config.pbtxt")
    with pytest.raises(Invalid) as caught:
        pbtxt.check(f"{text}[4] }}".encode(), made, "config.pbtxt")
    assert "output[1].dims is [4], and serving.outputs[1].dims in release.yaml is [3]." in str(caught.value)


def test_a_contract_of_one_size_of_one_is_kept_by_one_number_because_both_are_sent_alike() -> None:
    def problems(own: list[int], promised: list[int]) -> list[Problem]:
        side: dict[str, Any] = {"inputs": [RATE], "outputs": [{**SCORE, "dims": own}]}
        return against_contract(side, {"outputs": [{**SCORE, "dims": promised}]})

    assert not problems([], [1]) and not problems([1], []) and not problems([], [])
    assert problems([], [2])[0].fix == "Write [2]." and problems([], [1, 1])


@pytest.mark.parametrize("batch", [0, 8])
def test_values_become_what_the_server_takes(batch: int) -> None:
    serving = spec(batch=batch).serving
    lead = (1,) if batch else ()
    assert [one["sr"].shape for one in warmup.requests(serving, {})] == [(*lead, 1)]
    assert warmup.requests({**serving, "warmup": []}, {})[0]["sr"].shape == (*lead, 1)
    inputs = tensors_of(serving, "inputs")
    for value in (16_000, [16_000]):
        item = item_arrays(inputs, {"sr": value})
        assert stack([item], has_batch_axis=batch > 0)["sr"].shape == (*lead, 1)
    with pytest.raises(ValueError, match="the shape"):
        item_arrays(inputs, {"sr": [1, 2]})
    answer = {"score": np.zeros((*lead, 1), np.float32)}
    assert compare_answer(tensors_of(serving, "outputs"), answer, batch_size=1 if batch else None) == []


def test_a_server_that_somebody_else_runs_states_one_number_as_one_size_of_one() -> None:
    serving = spec(batch=8).serving
    assert differences(serving, [("sr", "INT64", (1,))], [("score", "FP32", (1,))]) == []
    assert differences(serving, [("sr", "INT64", (2,))], [("score", "FP32", (1,))])


def test_what_is_sent_for_a_shape() -> None:
    assert sent_dims([]) == [1] and sent_dims([-1]) == [-1] and sent_dims([2, 3]) == [2, 3]
