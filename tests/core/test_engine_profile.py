"""Which shapes an engine plan must take, from what a release declares."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.engine_profile import InputProfile, profile_of

IDS = {"name": "ids", "data_type": "INT64", "dims": [-1]}
IMAGE = {"name": "image", "data_type": "FP32", "dims": [3, -1, -1]}
X = {"name": "x", "data_type": "FP32", "dims": [8]}


def serving(*inputs: dict[str, Any], most: int = 16, preferred: list[int] | None = None) -> dict[str, Any]:
    batching = None if preferred is None else {"preferred_batch_size": preferred}
    return {"max_batch_size": most, "inputs": list(inputs), "dynamic_batching": batching}


def declared(name: str, low: list[int], usual: list[int], high: list[int]) -> dict[str, Any]:
    return {"engine": {"optimization_profiles": [{"input": name, "min": low, "opt": usual, "max": high}]}}


@pytest.mark.parametrize(
    ("preferred", "usual"), [(None, 16), ([], 16), ([8, 4], 8)], ids=["no batching", "none preferred", "preferred"]
)
def test_the_batch_goes_from_one_to_the_largest_and_is_tuned_for_the_largest_preferred(
    preferred: list[int] | None, usual: int
) -> None:
    profiles, problems = profile_of(serving(X, preferred=preferred), {})
    assert (profiles, problems) == ((InputProfile("x", (1, 8), (usual, 8), (16, 8)),), [])


def test_a_dimension_of_any_size_goes_to_what_the_limits_declare() -> None:
    limits = {"limits": {"max_input_dims": {"ids": [512], "image": [3, 640, 480]}}}
    profiles, problems = profile_of(serving(IDS, IMAGE, most=4), limits)
    assert problems == []
    assert [one.as_json() for one in profiles] == [
        {"input": "ids", "min": [1, 1], "opt": [4, 512], "max": [4, 512]},
        {"input": "image", "min": [1, 3, 1, 1], "opt": [4, 3, 640, 480], "max": [4, 3, 640, 480]},
    ]


def test_a_model_without_a_batch_axis_has_its_dims_alone() -> None:
    profiles, problems = profile_of(serving(X, IDS, most=0), {"limits": {"max_input_dims": {"ids": [64]}}})
    assert problems == []
    assert profiles == (InputProfile("x", (8,), (8,), (8,)), InputProfile("ids", (1,), (64,), (64,)))


def test_declared_shapes_count_before_what_would_be_made_up() -> None:
    profiles, problems = profile_of(serving(IDS, preferred=[8]), declared("ids", [1, 8], [4, 32], [32, 128]))
    assert (profiles, problems) == ((InputProfile("ids", (1, 8), (4, 32), (32, 128)),), [])


@pytest.mark.parametrize(
    ("inputs", "envelope", "field", "says"),
    [
        ([IDS], {}, "envelope.limits.max_input_dims.ids", "a plan needs to know the largest"),
        ([{**X, "data_type": "BYTES"}], {}, "serving.inputs[0]", "TensorRT has no texts"),
        (
            [X],
            {
                "engine": {
                    "optimization_profiles": declared("x", [1, 8], [1, 8], [16, 8])["engine"]["optimization_profiles"]
                    * 2
                }
            },
            "envelope.engine",
            "x has several profiles",
        ),
    ],
)
def test_what_no_plan_can_keep_is_refused(
    inputs: list[dict[str, Any]], envelope: dict[str, Any], field: str, says: str
) -> None:
    _, [problem] = profile_of(serving(*inputs), envelope)
    assert problem.field.startswith(field) and says in problem.message and problem.fix


@pytest.mark.parametrize(
    ("graph", "fits"),
    [((-1, 8), True), ((-1, -1), True), ((1, 8), False), ((-1, 9), False), ((-1,), False), ((16, 8), False)],
)
def test_a_graph_whose_sizes_are_fixed_otherwise_does_not_fit(graph: tuple[int, ...], fits: bool) -> None:
    assert InputProfile("x", (1, 8), (4, 8), (16, 8)).fits(graph) is fits
