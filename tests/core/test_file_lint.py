"""What files say of themselves, against release.yaml."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest

from registry.core.file_lint import external_data, lint, weights_bytes
from registry.core.formats import inspect
from registry.core.spec import parse_spec
from tests.support.worlds.model_files import gguf_file, onnx_file, plan_file, safetensors_file, tokenizer_file
from tests.support.worlds.registry_samples import release_yaml

ONE_TEXT = [{"name": "text", "data_type": "BYTES", "dims": [1]}]
IDS = [("input_ids", "INT64", [-1, -1]), ("attention_mask", "INT64", [-1, -1])]

NO_BATCH = {"serving.max_batch_size": 0, "serving.dynamic_batching": None, "envelope.limits.max_batch_size": 0}


def found(files: dict[str, bytes], changes: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    spec = parse_spec(release_yaml(changes))
    known = {}
    for path, data in files.items():
        findings = inspect(path, io.BytesIO(data), len(data))
        assert findings.problems == ()
        known[path] = (len(data), findings.facts)
    problems = lint(spec.serving, spec.envelope, spec.backend, known)
    assert all(problem.fix for problem in problems)
    return [(problem.field, f"{problem.message} {problem.fix}") for problem in problems]


def graph(**parts: Any) -> dict[str, bytes]:
    return {"artifact/model.onnx": onnx_file(**parts)}


def test_a_graph_that_is_what_serving_says() -> None:
    assert found(graph()) == []


@pytest.mark.parametrize(
    ("parts", "changes", "field", "says"),
    [
        ({"inputs": [("text", "BYTES", [-1, 1]), ("y", "FP32", [-1])]}, {}, "serving.inputs", "takes an input 'y'"),
        ({"inputs": [("words", "BYTES", [-1, 1])]}, {}, "serving.inputs[0].name", "Write words. Its inputs are words."),
        ({"outputs": [("logits", "FP32", [-1, 2])]}, {}, "serving.outputs[0].name", "no output 'probabilities'"),
        ({"outputs": [("probabilities", "INT64", [-1, 2])]}, {}, "serving.outputs[0].data_type", "Write INT64"),
        ({"outputs": [("probabilities", "FP32", [-1, 3])]}, {}, "serving.outputs[0].dims", "[3] after its batch dimension"),
        ({"outputs": [("probabilities", "FP32", [2])]}, {}, "serving.outputs[0].dims", "Write []."),
        ({"outputs": [("probabilities", "FP32", [1, 2])]}, {}, "serving.max_batch_size", "fixes at 1"),
        ({}, NO_BATCH, "serving.outputs[0].dims", "Write [-1, 2]."),
    ],
)  # fmt: skip
def test_a_graph_that_contradicts_serving(
    parts: dict[str, Any], changes: dict[str, Any], field: str, says: str
) -> None:
    assert any(at == field and says in text for at, text in found(graph(**parts), changes))


def test_what_may_differ() -> None:
    assert found(graph(outputs=[("probabilities", "FP16", [-1, -1]), ("embedding", "FP32", [-1, 8])])) == []
    weights = {"serving.outputs.0.dims": [-1]}
    assert found(graph(), weights) == []


def test_the_runtimes_tokenizer_makes_a_graphs_inputs() -> None:
    tokenizer = {"tokenizer/tokenizer.json": tokenizer_file({"[UNK]": 0})}
    assert found(graph(inputs=IDS) | tokenizer) == []
    without = found(graph(inputs=IDS))
    assert [at for at, _ in without] == ["serving.inputs[0].name", "serving.inputs", "serving.inputs"]
    assert "Add tokenizer/tokenizer.json" in without[0][1]
    extra = [*IDS, ("language", "INT64", [-1, 1])]
    assert "'language'" in found(graph(inputs=extra) | tokenizer)[0][1]


def test_code_decides_for_itself_what_it_does_with_a_graph() -> None:
    files = graph(inputs=IDS) | {"artifact/model.py": b"import os\n"}
    assert found(files, {"runtime.backend": "python"}) == []


def test_external_data_must_come_along_whole() -> None:
    parts: dict[str, Any] = {"weights": [("w", "FP32", [10])], "external": {"location": "w.data", "offset": "8"}}
    assert found(graph(**parts) | {"artifact/w.data": bytes(48)}) == []
    ((field, says),) = found(graph(**parts))
    assert field == "files.artifact/model.onnx" and "Add artifact/w.data" in says
    ((field, says),) = found(graph(**parts) | {"artifact/w.data": bytes(47)})
    assert field == "files.artifact/w.data" and "reads as far as byte 48" in says


def test_a_tokenizer_must_fit_the_table_of_embeddings() -> None:
    tokenizer = {"tokenizer/tokenizer.json": tokenizer_file({"[UNK]": 0, "good": 4})}
    for rows, count in ((5, 0), (4, 1)):
        for table in (
            {"artifact/w.safetensors": safetensors_file([("model.embed_tokens.weight", "F16", [rows, 2])])},
            {"artifact/w.gguf": gguf_file([("token_embd.weight", 0, [2, rows])])},
        ):
            problems = found(graph() | tokenizer | table)
            assert len(problems) == count
            assert all("the number 4" in says and f"{rows} rows" in says for _, says in problems)
    other = {"artifact/w.safetensors": safetensors_file([("position_embeddings.weight", "F16", [2, 2])])}
    assert found(graph() | tokenizer | other) == []


def test_declared_room_must_hold_the_files() -> None:
    big = graph() | {"artifact/w.data": bytes(3 << 20)}
    gpu = {"serving.instance_group": [{"kind": "gpu", "count": 1}], "envelope.accelerator.vendor": "nvidia"}
    assert found(big, gpu | {"envelope.accelerator.memory_mib_min": 4}) == []
    ((field, says),) = found(big, gpu | {"envelope.accelerator.memory_mib_min": 3})
    assert field == "envelope.accelerator.memory_mib_min" and "Ask for at least 4" in says
    two = gpu | {"envelope.accelerator.memory_mib_min": 2, "envelope.accelerator.count": 2}
    assert found(big, two) == []
    ((field, says),) = found(big, two | {"envelope.accelerator.memory_mib_min": 1})
    assert "on each of 2 devices" in says and "at least 2" in says
    assert [at for at, _ in found(big, {"envelope.host.memory_mib_min": 2})] == ["envelope.host.memory_mib_min"]
    assert [at for at, _ in found(big, {"envelope.host.disk_mib": 2})] == ["envelope.host.disk_mib"]
    lazy = big | {"artifact/model.py": b""}
    assert found(lazy, {"runtime.backend": "python", "envelope.host.memory_mib_min": 2}) == []


ON_TENSORRT = {
    "runtime.backend": "tensorrt",
    "serving.instance_group": [{"kind": "gpu", "count": 1}],
    "envelope.accelerator.vendor": "nvidia",
}


@pytest.mark.parametrize(
    ("declared", "told", "fits"),
    [(None, (10, 3, 0, 26), True), ("10.3", (10, 3, 0, 26), True), ("10.3.0.26", (10, 3, 0, 26), True),
     ("10.4", (10, 3, 0, 26), False), ("8.6.1", (10, 3, 0, 26), False), ("8.6.1", (0, 0, 0, 0), True)],
)  # fmt: skip
def test_the_declared_tensorrt_is_the_plans_own(declared: str | None, told: tuple[int, ...], fits: bool) -> None:
    changes = ON_TENSORRT | ({} if declared is None else {"envelope.engine.builder_version": declared})
    problems = found({"artifact/model.plan": plan_file(tensorrt=told)}, changes)
    if fits:
        assert problems == []
    else:
        ((field, says),) = problems
        assert field == "envelope.engine.builder_version" and 'Write "10.3.0.26"' in says


@pytest.mark.parametrize("name", ["memory_mib_min", "memory_mib_peak_declared"])
def test_a_device_holds_the_plan_and_its_workspace(name: str) -> None:
    def said(memory: int, **more: Any) -> list[tuple[str, str]]:
        changes = ON_TENSORRT | {f"envelope.accelerator.{name}": memory, "envelope.engine.workspace_mib": 3, **more}
        return found({"artifact/model.plan": plan_file(bytes(1 << 20))}, changes)

    assert said(5) == []
    ((field, text),) = said(4)
    assert field == f"envelope.accelerator.{name}"
    assert "4 MiB cannot hold the weights and a workspace of 3 MiB" in text and "at least 5" in text
    assert said(4, **{"envelope.accelerator.count": 2}) == [], "each of two devices has a workspace"
    assert "at least 4" in said(3, **{"envelope.accelerator.count": 2})[0][1]


def test_declared_room_is_enough_when_it_is_exact() -> None:
    """1 MiB of weights in 1 MiB of memory; of disk, everything counts."""
    exact = {"artifact/w.data": ((1 << 20), {})}
    spec = parse_spec(release_yaml({"envelope": {"host": {"memory_mib_min": 1, "disk_mib": 1}}}))
    assert lint(spec.serving, spec.envelope, "sluicegate-onnx", exact) == []
    more = {"artifact/w.data": ((1 << 20) + 1, {})}
    at = [problem.field for problem in lint(spec.serving, spec.envelope, "sluicegate-onnx", more)]
    assert at == ["envelope.host.disk_mib", "envelope.host.memory_mib_min"]
    notes = {**exact, "tokenizer/tokenizer.json": (1, {}), "artifact/notes.txt": (5, {})}
    assert [p.field for p in lint(spec.serving, spec.envelope, "sluicegate-onnx", notes)] == ["envelope.host.disk_mib"]


@pytest.mark.parametrize(
    "name", ["model.onnx_data", "model_data", "5f0c9d2a-4f44", "onnx__MatMul_1", "w.weight", "w.bin", "w.npy"]
)
def test_what_a_graph_names_as_its_data_is_data_whatever_it_is_called(name: str) -> None:
    parts: dict[str, Any] = {"weights": [("w", "FP32", [10])], "external": {"location": name}}
    assert found(graph(**parts) | {f"artifact/{name}": bytes(40)}) == []
    known = {
        path: (len(data), inspect(path, io.BytesIO(data), len(data)).facts)
        for path, data in (graph(**parts) | {f"artifact/{name}": bytes(40)}).items()
    }
    assert external_data(known) == {f"artifact/{name}"} and weights_bytes(known) >= 40


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_bf16_at_an_end_of_the_graph_needs_a_cast(side: str) -> None:
    tensor = ("text", "BF16", [-1, 1]) if side == "inputs" else ("probabilities", "BF16", [-1, 2])
    ((field, says),) = found(graph(**{side: [tensor]}))
    assert field == f"serving.{side}[0].data_type" and "Export the graph with a Cast there" in says


def test_a_file_of_no_format_that_no_graph_names_is_refused() -> None:
    ((field, says),) = found(graph() | {"artifact/model_data": bytes(40)})
    assert field == "files.artifact/model_data" and "not of an allowed format (no ending)" in says


def test_a_pickle_stays_a_pickle_though_a_graph_names_it() -> None:
    data = pickle.dumps(["x"] * 40)
    known = {
        path: (len(data), inspect(path, io.BytesIO(data), len(data)).facts)
        for path, data in (
            graph(weights=[("w", "FP32", [10])], external={"location": "w.bin"}) | {"artifact/w.bin": data}
        ).items()
    }
    assert external_data(known) == frozenset()


def test_beside_a_graph_that_was_not_read_nothing_is_refused() -> None:
    spec = parse_spec(release_yaml())
    unread: Any = {"artifact/model.onnx": (10, {}), "artifact/model_data": (10, {})}
    assert lint(spec.serving, spec.envelope, spec.backend, unread) == []


def test_an_output_that_no_request_carries_is_named_with_the_way_out() -> None:
    facts = inspect("artifact/model.onnx", io.BytesIO(onnx_file()), len(onnx_file())).facts
    spec = parse_spec(release_yaml())
    facts = {**facts, "outputs": [["probabilities", "OTHER", [-2]]]}
    (problem,) = lint(spec.serving, spec.envelope, spec.backend, {"artifact/model.onnx": (10, facts)})
    assert "a sequence, a map" in problem.message and "zipmap=False" in problem.fix
