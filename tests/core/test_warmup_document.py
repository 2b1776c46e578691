"""The examples of docs/warmup.md read without a mistake, and their requests have the sizes that the text states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from registry.core.spec import Spec, parse_spec
from serving.servers.core.made_up import SHARES, made_up_items
from serving.targets.agent import warmup
from tests.support.worlds.registry_samples import release_yaml
from validators.core.contract import tensors_of

DOC = (Path(__file__).parents[2] / "docs" / "warmup.md").read_text()
EXAMPLES: list[dict[str, Any]] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)]


def spec(example: dict[str, Any]) -> Spec:
    document = release_yaml()
    return parse_spec({**document, "serving": example["serving"], "envelope": example["envelope"]})


def test_there_are_examples_of_sound_pictures_and_tokens() -> None:
    names = {one["name"] for example in EXAMPLES for one in example["serving"]["inputs"]}
    assert names >= {"input", "sr", "audio", "x", "input_ids"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one["serving"]["inputs"][0]["name"])
def test_each_example_makes_requests(example: dict[str, Any]) -> None:
    read = spec(example)
    limits = read.envelope["limits"]
    largest = {
        one["name"]: limits.get("max_input_dims", {}).get(one["name"], one["dims"]) for one in read.serving["inputs"]
    }
    lead = 1 if read.serving["max_batch_size"] else 0
    for request in warmup.requests(read.serving, limits):
        for name, value in request.items():
            assert value.ndim == lead + (len(largest[name]) or 1)
            assert all(
                size in (most, max(1, most // 8)) for size, most in zip(value.shape[lead:], largest[name], strict=False)
            )
    for item in made_up_items(tensors_of(read.serving, "inputs"), limits, most=len(SHARES)):
        for name, (low, high) in limits["input_values"].items():
            assert low <= item[name].min() and item[name].max() <= high


def test_made_up_pictures_have_sides_that_detectors_take() -> None:
    (pictures,) = [one for one in EXAMPLES if one["serving"]["inputs"][0]["name"] == "x"]
    read = spec(pictures)
    items = made_up_items(tensors_of(read.serving, "inputs"), read.envelope["limits"], most=len(SHARES))
    assert len(items) == len(SHARES)
    assert all(size % 32 == 0 for item in items for size in item["x"].shape[1:])
