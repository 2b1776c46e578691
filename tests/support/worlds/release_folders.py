"""Release folders with mistakes of every family, to be judged through every door: each must get the same list."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.worlds.model_files import onnx_file, plan_file, safetensors_file, torchscript_file
from tests.support.worlds.registry_samples import IMAGE

GRAPH_PATH = "artifact/model.onnx"
X, Y = ("x", "FP32", [-1, 4]), ("score", "FP32", [-1, 2])
GRAPH = onnx_file(inputs=[X], outputs=[Y])
SERVING: dict[str, Any] = {
    "max_batch_size": 8,
    "inputs": [{"name": "x", "data_type": "FP32", "dims": [4]}],
    "outputs": [{"name": "score", "data_type": "FP32", "dims": [2]}],
}
GPU = {"serving.instance_group": [{"kind": "gpu", "count": 1}], "envelope": {"accelerator": {"vendor": "nvidia"}}}
TOKENIZER = json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 20}, "unk_token": "a"}}).encode()


@dataclass(frozen=True)
class Case:
    """A folder. `expected`: (file, field) of each mistake in order; a part of the message stands behind a `|` of the field."""

    name: str
    expected: list[tuple[str, str]]
    changes: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    text: str | None = None
    without: tuple[str, ...] = ()
    model: str = "free"

    def write(self, folder: Path) -> Path:
        files = {GRAPH_PATH: GRAPH, **self.files}
        for path, data in files.items():
            if path not in self.without:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "release.yaml").write_text(self.text if self.text is not None else self.document())
        return folder

    def document(self) -> str:
        made: dict[str, Any] = {
            "model": self.model,
            "runtime": {"image": IMAGE, "server": "triton", "backend": "sluicegate-onnx"},
            "serving": SERVING,
        }
        made = json.loads(json.dumps(made))
        for path, value in self.changes.items():
            *parents, last = path.split(".")
            inside: Any = made
            for part in parents:
                inside = inside[int(part)] if isinstance(inside, list) else inside.setdefault(part, {})
            if value is ...:
                del inside[last]
            elif isinstance(inside, list):
                inside[int(last)] = value
            else:
                inside[last] = value
        return yaml.safe_dump(made, sort_keys=False)


def _external(location: str) -> dict[str, bytes]:
    weights = [("w", "FP32", [2, 2])]
    return {GRAPH_PATH: onnx_file(inputs=[X], outputs=[Y], weights=weights, external={"location": location})}


YAML, CONFIG = "release.yaml", "config.pbtxt"
CASES = [
    Case("nothing wrong", []),
    Case("what systems add is left out", [], files={
        "artifact/.DS_Store": b"x", "artifact/._model.onnx": b"x", "artifact/Thumbs.db": b"x", "artifact/.gitkeep": b"",
        "artifact/__pycache__/model.cpython-311.pyc": b"x", "artifact/.ipynb_checkpoints/a.json": b"{", "notes.txt": b"x",
        "tokenizer/.cache/huggingface/a.lock": b"", "artifact/model.onnx~": b"x", "__MACOSX/artifact/._a": b"x",
    }),
    Case("wrong output name", [(YAML, "serving.outputs[0].name|has no output 'scores'")], {"serving.outputs.0.name": "scores"}),
    Case("wrong input name", [(YAML, "serving.inputs[0].name|has no input 'z'")], {"serving.inputs.0.name": "z"}),
    Case("missing input", [(YAML, "serving.inputs|takes an input 'mask'")], files={
        GRAPH_PATH: onnx_file(inputs=[X, ("mask", "INT64", [-1, 4])], outputs=[Y]),
    }),
    Case("wrong dims", [(YAML, "serving.outputs[0].dims")], {"serving.outputs.0.dims": [3]}),
    Case("wrong data type", [(YAML, "serving.inputs[0].data_type|FP32")], {"serving.inputs.0.data_type": "BYTES"}),
    Case("a batch that the graph fixes", [(YAML, "serving.max_batch_size|fixes at 1")], files={
        GRAPH_PATH: onnx_file(inputs=[("x", "FP32", [1, 4])], outputs=[Y]),
    }),
    Case("a vocabulary larger than the table", [("tokenizer/tokenizer.json", "path|has 10 rows")], files={
        GRAPH_PATH: onnx_file(inputs=[X], outputs=[Y], weights=[("word_embeddings.weight", "FP32", [10, 2])]),
        "tokenizer/tokenizer.json": TOKENIZER,
    }),
    Case("a tokenizer that is no JSON", [("tokenizer/tokenizer.json", "tokenizer/tokenizer.json|cannot be JSON")], files={
        "tokenizer/tokenizer.json": b"{",
    }),
    Case("config.pbtxt contradicts", [(CONFIG, "|max_batch_size is 4"), (CONFIG, "|backend 'python' contradicts")][::-1], files={
        CONFIG: b'max_batch_size: 4\nbackend: "python"\n',
    }),
    Case("config.pbtxt has no place for a field", [(CONFIG, "|no place for input[0].optional")], files={
        CONFIG: b'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: 4 optional: true }\n',
    }),
    Case("config.pbtxt cannot be read", [(CONFIG, "|")], files={CONFIG: b"max_batch_size: ,\n"}),
    Case("config.pbtxt beside a mistake of release.yaml", [
        (YAML, "provenance.git_commit"), (CONFIG, "|max_batch_size is 4"),
    ], {"provenance": {"git_commit": "no"}}, {CONFIG: b"max_batch_size: 4\n"}),
    Case("syntax", [(YAML, "|expected")], text="model: free\nruntime: [1\n"),
    Case("a field twice", [(YAML, "|occurs twice"), (YAML, "runtime"), (YAML, "serving")], text="model: free\nmodel: free\n"),
    Case("empty", [(YAML, "|it is empty")], text=""),
    Case("wrong types", [
        (YAML, "serving.max_batch_size"), (YAML, "serving.inputs[0].dims[0]"), (YAML, "serving.outputs[0].name|no output 'q'"),
    ], {"serving.max_batch_size": "x", "serving.inputs.0.dims": ["a"], "serving.outputs.0.name": "q"}),
    Case("unknown fields", [(YAML, "wishes"), (YAML, "serving.max_batchsize")][::-1], {
        "serving.max_batchsize": 1, "wishes": 1,
    }),
    Case("the old name of a backend", [(YAML, "runtime.backend|Triton's own backend")], {"runtime.backend": "onnxruntime"}),
    Case("a tag in the place of a digest", [(YAML, "runtime.image")], {"runtime.image": "triton:24.10"}),
    Case("no model file", [("", "files|no such file")], files={"artifact/notes.md": b"x"}, without=(GRAPH_PATH,)),
    Case("no file at all", [("", "files|no file under artifact/"), ("", "files|no such file")][::-1], without=(GRAPH_PATH,)),
    Case("a forbidden format", [("artifact/w.npy", "path|can run code")], files={"artifact/w.npy": b"x"}),
    Case("an unknown format", [("artifact/run.sh", "path|is a program (.sh)")], files={"artifact/run.sh": b"x"}),
    Case("names that differ in case", [("artifact/a.json", "path|one file on some file systems")], files={
        "artifact/A.json": b"{}", "artifact/a.json": b"{}",
    }),
    Case("a misspelt folder", [("tokeniser/", "path|neither artifact/ nor tokenizer/")], files={"tokeniser/vocab.txt": b"a"}),
    Case("a folder in the place of a file", [(CONFIG, "path|it is a folder")], files={"config.pbtxt/a.md": b"a"}),
    Case("a pickle under another name", [("artifact/w.data", "artifact/w.data|a pickle stream")], files={
        "artifact/w.data": pickle.dumps({"a": list(range(100))}),
    }),
    Case("a graph that is none", [(GRAPH_PATH, f"{GRAPH_PATH}|cannot be an ONNX graph")], files={GRAPH_PATH: b"not a graph"}),
    Case("weights beside the graph are missing", [(GRAPH_PATH, "path|keeps weights in artifact/w.data")], files=_external("w.data")),
    Case("weights beside the graph under any name", [], files={**_external("./w.txt"), "artifact/w.txt": bytes(16)}),
    Case("weights beside the graph are an archive", [
        ("artifact/model.onnx_data", "artifact/model.onnx_data|is a zip archive"),
    ], files={**_external("model.onnx_data"), "artifact/model.onnx_data": b"PK\x03\x04" + bytes(99)}),
    Case("weights beside the graph are a pickle", [
        ("artifact/model_data", "artifact/model_data|is a pickle stream"),
    ], files={**_external("model_data"), "artifact/model_data": pickle.dumps({"a": list(range(100))})}),
    Case("weights beside the graph are text by name and a pickle by content", [
        ("artifact/w.txt", "artifact/w.txt|is a pickle stream"),
    ], files={**_external("w.txt"), "artifact/w.txt": pickle.dumps({"a": list(range(100))})}),
    Case("weights beside the graph under a name that is left out", [(GRAPH_PATH, "path|keeps weights in artifact/w~")], files={
        **_external("w~"), "artifact/w~": bytes(16),
    }),
    Case("weights outside of the folder", [(GRAPH_PATH, f"{GRAPH_PATH}|leaves the graph's folder")], files=_external("../w.data")),
    Case("a warm-up text for a number", [(YAML, "serving.warmup[0].inputs.x|'zero' is not FP32")], {
        "serving.warmup": [{"inputs": {"x": "zero"}}],
    }),
    Case("a warm-up of other inputs", [
        (YAML, "serving.warmup[0].inputs|'x' has no value"), (YAML, "serving.warmup[0].inputs.y|no such input"),
    ], {"serving.warmup": [{"inputs": {"y": 1}}]}),
    Case("a warm-up text with NUL", [(YAML, "|cannot stand in YAML")], text="model: free\na: b\0c\n"),
    Case("a limit that contradicts", [(YAML, "envelope.limits.max_batch_size")], {"envelope": {"limits": {"max_batch_size": 4}}}),
    Case("too little memory and disk", [(YAML, "envelope.host.memory_mib_min"), (YAML, "envelope.host.disk_mib")], {
        "envelope": {"host": {"memory_mib_min": 1, "disk_mib": 1}},
    }, {"artifact/w.data": bytes(3 << 20)}),
    Case("a GPU that is not declared", [(YAML, "envelope.accelerator.vendor|no accelerator")], {
        "serving.instance_group": [{"kind": "gpu", "count": 1}],
    }),
    Case("a plan that its envelope contradicts", [(YAML, "envelope.engine.builder_version")], {
        **GPU, "runtime.backend": "tensorrt",
        "envelope": {"accelerator": {"vendor": "nvidia"}, "engine": {"type": "trt-plan", "builder_version": "10.4.0"}},
    }, {"artifact/model.plan": plan_file()}),
    Case("a plan that is none", [("artifact/model.plan", "artifact/model.plan|cannot be a TensorRT plan")], {
        **GPU, "runtime.backend": "tensorrt",
    }, {"artifact/model.plan": b"no plan" * 20}),
    Case("a state_dict as TorchScript", [("artifact/model.pt", "artifact/model.pt|cannot be a TorchScript archive")], {
        "runtime.backend": "pytorch",
    }, {"artifact/model.pt": torchscript_file(code=False)}),
    Case("a python backend without code", [("", "files|loads artifact/model.py")], {"runtime.backend": "python"}),
    Case("a safetensors file cut off", [("artifact/w.safetensors", "artifact/w.safetensors|")], files={
        "artifact/w.safetensors": safetensors_file([("w", "F32", [4])])[:-8],
    }),
    Case("the contract is broken", [
        (YAML, "serving.inputs|has 'text'"), (YAML, "serving.inputs[0].name|no input 'x'"),
        (YAML, "serving.outputs|has 'probabilities'"),
    ], model="strict"),
    Case("slower than the model allows", [(YAML, "envelope.performance[0].latency_ms.p99")], {
        "envelope": {"performance": [
            {"hardware": "L4", "workload": "own", "source": "declared", "latency_ms": {"p99": 1500}},
        ]},
    }, model="quick"),
    Case("mistakes of all families at once", [
        (YAML, "serving.max_batch_size"), (YAML, "serving.outputs[0].name|has no output 'scores'"),
        (YAML, "serving.warmup[0].inputs.x|'zero'"), (YAML, "provenance.git_commit"), ("tokeniser/", "path"),
        ("artifact/broken.json", "artifact/broken.json"), ("artifact/run.sh", "path"), (CONFIG, "|no place for version_policy"),
        (CONFIG, "|name 'z' is not"),
    ], {
        "serving.max_batch_size": -1, "serving.outputs.0.name": "scores", "serving.warmup": [{"inputs": {"x": "zero"}}],
        "provenance": {"git_commit": "no"},
    }, {
        "artifact/broken.json": b"{", "artifact/run.sh": b"x", "tokeniser/a.txt": b"a",
        CONFIG: b'name: "z"\nmax_batch_size: 4\nversion_policy { latest { } }\n',
    }),
]  # fmt: skip
