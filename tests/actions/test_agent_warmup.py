"""What an agent warms a server up with: the release's own requests, or such as its envelope declares."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from typing import Any

import pytest

from registry.models import ServedModel
from serving.models import Environment, Node
from serving.targets.agent.warmup import array, requests
from tests.support.worlds.replica_setup import (  # noqa: F401
    Clock,
    S,
    World,
    clock,
    model,
    node,
    release,
    sealed,
    staging,
    world,
)

pytestmark = pytest.mark.django_db


def test_it_warms_up_with_the_releases_own_requests(
    model: ServedModel, staging: Environment, node: Node, clock: Clock
) -> None:
    seen: list[Any] = []
    world = World(
        sealed(model, warmup=[{"batch_size": 2, "inputs": {"x": [1, 2, 3, 4]}}, {"batch_size": 1, "inputs": {"x": 7}}]),
        staging,
        clock,
    )
    world.behaviour.compute = lambda arrays: (seen.append(arrays["x"].tolist()), {"y": arrays["x"]})[1]
    world.until(S.READY)
    assert seen == [[[1, 2, 3, 4], [1, 2, 3, 4]], [[7, 7, 7, 7]]]


def test_warm_up_values_take_the_shape_of_the_tensor() -> None:
    text = {"name": "text", "data_type": "BYTES", "dims": [1]}
    assert array("hi", text, 2).tolist() == [["hi"], ["hi"]]
    assert array(["a", "b"], text, 2).tolist() == [["a"], ["b"]]
    assert array([["a"], ["b"]], text, 2).tolist() == [["a"], ["b"]]
    image = {"name": "x", "data_type": "FP32", "dims": [-1, 2]}
    assert array([[1, 2], [3, 4]], image, 3).shape == (3, 2, 2)
    assert array(3, {"name": "x", "data_type": "INT64", "dims": [2]}, 0).tolist() == [3, 3]
    with pytest.raises(ValueError, match="has the shape"):
        array([1, 2, 3], {"name": "x", "data_type": "FP32", "dims": [4]}, 1)
    with pytest.raises(ValueError, match="no form in JSON"):
        array([1.0], {"name": "x", "data_type": "BF16", "dims": [1]}, 1)
    for value in ([None, 1], [{}, 1], [2**70, 1], ["a", 1], [[1], 1]):
        with pytest.raises(ValueError, match="the value of ids is not INT64: "):
            array(value, {"name": "ids", "data_type": "INT64", "dims": [2]}, 0)


def test_a_made_up_warm_up_keeps_to_what_the_envelope_declares() -> None:
    """An id above the vocabulary ends many an embedding, and so does one of 0 where that is no word."""
    tensors = [{"name": name, "data_type": "INT64", "dims": [-1]} for name in ("ids", "mask")]
    serving = {"max_batch_size": 8, "inputs": [*tensors, {"name": "text", "data_type": "BYTES", "dims": [1]}]}
    limits = {"max_input_dims": {"ids": [512], "mask": [512]}, "input_values": {"ids": [100, 200], "mask": [1, 1]}}
    (asked,) = requests(serving, limits)
    assert {name: value.shape for name, value in asked.items()} == {"ids": (1, 64), "mask": (1, 64), "text": (1, 1)}
    assert 100 <= asked["ids"].min() < asked["ids"].max() <= 200 and set(asked["mask"].ravel()) == {1}
    assert all((requests(serving, limits)[0][name] == value).all() for name, value in asked.items())
    (plain,) = requests({**serving, "max_batch_size": 0}, {})
    assert plain["ids"].tolist() == [0] and plain["text"].shape == (1,)
    given = {"batch_size": 2, "inputs": {"ids": [7, 8], "mask": [1, 1], "text": "hi"}}
    (declared,) = requests({**serving, "warmup": [given]}, limits)
    assert declared["ids"].tolist() == [[7, 8], [7, 8]] and declared["text"].tolist() == [["hi"], ["hi"]]


def test_the_agent_warms_up_and_probes_within_the_envelope(
    model: ServedModel, staging: Environment, node: Node, clock: Clock
) -> None:
    seen: list[Any] = []
    world = World(sealed(model, limits={"input_values": {"x": [5, 6]}}), staging, clock)
    world.behaviour.compute = lambda arrays: (seen.append(arrays["x"]), {"y": arrays["x"]})[1]
    world.until(S.READY)
    world.reconciler.step()
    assert len(seen) >= 2 and all(5 <= x.min() <= x.max() <= 6 for x in seen)
