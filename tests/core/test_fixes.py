"""No rule refuses the fix of another: each `Fix:` is followed until the release has no mistake."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import yaml

from registry.core.folder_rules import added_part
from registry.core.formats import inspect
from registry.core.release_check import Candidate, ModelTerms, check
from registry.core.schema import Problem
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import release_yaml

#: More than this many rounds is a circle: every release here has fewer mistakes.
MOST_ROUNDS = 8
PLAIN = {"serving.dynamic_batching": None, "serving.warmup": [], "serving.parameters": {}, "envelope.limits": {}}
X: Any = ("x", "FP32", [-1, 4])


def tensor(name: str, dims: Any, data_type: str = "FP32") -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims}


def every(document: dict[str, Any], files: dict[str, bytes]) -> list[Problem]:
    findings = {path: inspect(path, io.BytesIO(data), len(data)) for path, data in files.items()}
    listed = [{"path": path, "size_bytes": len(data)} for path, data in files.items()]
    found = check(Candidate(document, listed, findings), ModelTerms("sentiment", max_bytes=1 << 30)).problems
    return [one.problem for one in found]


def first(document: dict[str, Any], files: dict[str, bytes]) -> Problem | None:
    return next(iter(every(document, files)), None)


def followed(problem: Problem, document: dict[str, Any], files: dict[str, bytes]) -> None:
    """Follows the first step of the fix, in its field. Raises AssertionError for a fix without a step."""
    spot, field = problem.fix, problem.field
    if name := re.match(r"Add (artifact/\S+?)[.,]? ?$", spot):
        if added_part(name[1]):
            raise AssertionError(f"{name[1]} is left out of every folder")
        files[name[1]] = bytes(4096)
    elif spot.startswith("Export the graph with another name for them"):
        files["artifact/model.onnx"] = onnx_file(
            weights=[("w", "FP32", [10])], external={"location": "model.onnx_data"}
        )
    elif name := re.match(r"Add (.+?), or export", spot):
        document["serving"]["inputs"].append(tensor(yaml.safe_load(name[1]), [4]))
    elif said := re.match(r"Write a whole number, .*, or (-?\d+)\.$", spot):
        put(document, field, int(said[1]))
    elif spot.startswith("Remove this one."):
        put(document, field.removesuffix(".name"), ...)
    elif said := re.match(r"Write (\w+ )?max_batch_size 0", spot):
        document["serving"]["max_batch_size"] = 0
    elif spot.startswith(("Remove", "Leave it out")):
        put(document, field, ...)
    elif said := re.match(r"Write (.+?)\.( |$)", spot):
        put(document, field, yaml.safe_load(said[1]))
    else:
        raise AssertionError(f"no step in {problem}")


def put(document: Any, field: str, value: Any) -> None:
    *parts, last = re.findall(r"[^.\[\]]+", field)
    for part in parts:
        document = document[int(part)] if isinstance(document, list) else document[part]
    key = int(last) if isinstance(document, list) else last
    if value is ...:
        del document[key]
    else:
        document[key] = value


@pytest.mark.parametrize("dims", [[], [1], [4], [-1], [1, 1], [2, 2], [0], 3])
@pytest.mark.parametrize("shape", [[], [-1], [1], [-1, 1], [-1, -1], [1, 4], [-1, 4], [8, 4], [0], [-1, 0], [-1, 2, 2]])
@pytest.mark.parametrize("batch", [0, 1, 8])
def test_any_shape_of_a_graph_can_be_declared_by_following_the_fixes(batch: int, shape: list[int], dims: Any) -> None:
    files = {"artifact/model.onnx": onnx_file(inputs=[X], outputs=[("y", "FP32", shape)])}
    document = release_yaml(
        {
            **PLAIN,
            "serving.max_batch_size": batch,
            "serving.inputs": [tensor("x", [4])],
            "serving.outputs": [tensor("y", dims)],
        }
    )
    if dims == 3:
        document["serving"]["outputs"][0]["dims"] = [3]
    settle(document, files)


@pytest.mark.parametrize("dims", [[], [1], [-1], [2]])
@pytest.mark.parametrize("shape", [[], [-1], [-1, -1]])
@pytest.mark.parametrize("batch", [0, 8])
def test_so_can_any_shape_of_an_input(batch: int, shape: list[int], dims: list[int]) -> None:
    files = {"artifact/model.onnx": onnx_file(inputs=[X, ("sr", "INT64", shape)], outputs=[("y", "FP32", [-1])])}
    changes = {
        **PLAIN,
        "serving.max_batch_size": batch,
        "serving.inputs": [tensor("x", [4]), tensor("sr", dims, "INT64")],
        "serving.outputs": [tensor("y", [])],
    }
    settle(release_yaml(changes), files)


@pytest.mark.parametrize("name", ["sepal length (cm)", "年齢", "/in/x", "a: b", "it's", '"q"', "x.y[0]"])
def test_so_can_any_name_of_a_graph(name: str) -> None:
    files = {
        "artifact/model.onnx": onnx_file(inputs=[(name, "FP32", [-1, 4])], outputs=[(f"{name}/out", "FP32", [-1])])
    }
    document = release_yaml({**PLAIN, "serving.inputs": [tensor("x", [4])], "serving.outputs": [tensor("y", [])]})
    settle(document, files)
    assert document["serving"]["inputs"][0]["name"] == name


@pytest.mark.parametrize(
    "name",
    [
        "model.onnx_data", "./model.onnx_data", "model_data", "w.bin", "0f3c-4d.data", "onnx__MatMul_12", "w.weight",
        "w.txt", "w.json", "w.yaml", "w.csv", "w.safetensors", "w.gguf", "w.plan", "w.onnx", "w.codes", "w.vocab", "w.xml",
        "w.md", "LICENSE", "w.npy", "w.so", "w~", "w.swp", ".keep", ".git/w", "w.py", "w.pt", "config.pbtxt", "model.plan",
    ],
)  # fmt: skip
def test_so_can_what_a_graph_keeps_beside_itself(name: str) -> None:
    graph = onnx_file(weights=[("w", "FP32", [10])], external={"location": name})
    settle(release_yaml(PLAIN), {"artifact/model.onnx": graph})


@pytest.mark.parametrize("names", [["X"], ["X", "Z"], ["z", "z2"], ["x", "Y"], ["Y", "x"], ["a", "b", "c"]])
def test_so_can_inputs_of_misspelt_names(names: list[str]) -> None:
    files = {"artifact/model.onnx": onnx_file(inputs=[X, ("y", "FP32", [-1, 4])], outputs=[("y", "FP32", [-1])])}
    served = {"serving.inputs": [tensor(name, [4]) for name in names], "serving.outputs": [tensor("z", [])]}
    document = release_yaml({**PLAIN, **served})
    settle_at_once(document, files)
    assert sorted(one["name"] for one in document["serving"]["inputs"]) == ["x", "y"]


@pytest.mark.parametrize("letter", ["n", "é", "齢", "🐌"])
def test_so_can_the_longest_name(letter: str) -> None:
    name = letter * 256
    graph = onnx_file(inputs=[(name, "FP32", [-1, 4])], outputs=[(name, "FP32", [-1])])
    document = release_yaml({**PLAIN, "serving.inputs": [tensor("x", [4])], "serving.outputs": [tensor("y", [])]})
    settle(document, {"artifact/model.onnx": graph})
    assert document["serving"]["inputs"][0]["name"] == name == document["serving"]["outputs"][0]["name"]


def test_so_can_a_models_name() -> None:
    document = release_yaml({**PLAIN, "model": "Sentiment"})
    problem = first(document, {"artifact/model.onnx": onnx_file()})
    assert problem is not None and problem.fix.endswith("Was sentiment meant?")
    document["model"] = re.findall(r"Was (\S+) meant", problem.fix)[0]
    settle(document, {"artifact/model.onnx": onnx_file()})


def settle(document: dict[str, Any], files: dict[str, bytes]) -> None:
    """Raises AssertionError if the fixes lead in a circle."""
    seen = []
    for _ in range(MOST_ROUNDS):
        problem = first(document, files)
        if problem is None:
            return
        seen.append(f"{problem.field}: {problem.message} {problem.fix}")
        followed(problem, document, files)
    assert first(document, files) is None, "\n".join(seen)


def settle_at_once(document: dict[str, Any], files: dict[str, bytes]) -> None:
    """Follows all fixes of one list. Raises AssertionError if mistakes are left: no two fixes of a list may contradict."""
    removed_last = sorted(every(document, files), key=lambda one: one.field, reverse=True)
    for problem in removed_last:
        followed(problem, document, files)
    assert every(document, files) == []
