"""Small real releases for the serving contracts: a doubling graph, a text model with a tokenizer, and code that misbehaves."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ledger.core.canonical import digest_of
from serving.ports import LaunchSpec
from serving.targets.agent import runtime_image

VENV = Path(__file__).resolve().parents[2] / ".venv-serving"
WORDS = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "film": 4}


class MemoryBlobs:
    """Blobs in memory, by sha256."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.data[sha256] = data
        return sha256

    def open(self, sha256: str) -> BinaryIO:
        return io.BytesIO(self.data[sha256])

    def reader_of(self, sha256: str) -> Callable[[int, int], bytes]:
        data = self.data[sha256]
        return lambda start, length: data[start : start + length]


def doubling_graph(dims: int = 4) -> bytes:
    """y = 2x, FP32[4], with a batch axis."""
    two = numpy_helper.from_array(np.array(2.0, dtype=np.float32), "two")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", dims])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", dims])
    return graph_bytes(helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "double", [x], [y], [two]))


#: Rows and columns of what the slow graph multiplies.
SLOW_SIZE = 512


def slow_graph(turns: int) -> bytes:
    """y = 2x, FP32[4], with a batch axis, after so many multiplications of large matrices."""
    square = numpy_helper.from_array(np.full((SLOW_SIZE, SLOW_SIZE), 1 / SLOW_SIZE, np.float32), "w")
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["m", "w"], ["next"]),
            helper.make_node("Identity", ["go"], ["goes"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("m", TensorProto.FLOAT, [SLOW_SIZE, SLOW_SIZE]),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [SLOW_SIZE, SLOW_SIZE]),
        ],
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    constants = [
        square,
        numpy_helper.from_array(np.array(turns, dtype=np.int64), "turns"),
        numpy_helper.from_array(np.array(True), "yes"),
        numpy_helper.from_array(np.array(0.0, dtype=np.float32), "zero"),
        numpy_helper.from_array(np.array(2.0, dtype=np.float32), "two"),
    ]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Add", ["w", "mean"], ["first"]),
        helper.make_node("Loop", ["turns", "yes", "first"], ["last"], body=body),
        helper.make_node("ReduceMean", ["last"], ["of_it"], keepdims=0),
        helper.make_node("Mul", ["of_it", "zero"], ["nothing"]),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "nothing"], ["y"]),
    ]
    return graph_bytes(helper.make_graph(nodes, "slow", [x], [y], constants))


def word_count_graph() -> bytes:
    """length = the number of tokens of each text, total = the sum of their ids."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "s"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["n", "s"])
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 1]) for name in ("length", "total")]
    axis = numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "axis"], ["length"], keepdims=1),
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["total"], keepdims=1),
    ]
    return graph_bytes(helper.make_graph(nodes, "words", [ids, mask], outputs, [axis]))


def word_level_tokenizer() -> bytes:
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "[UNK]"},
        }
    ).encode()


def graph_bytes(graph: onnx.GraphProto) -> bytes:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


MISBEHAVING = """
import json, os, time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads((Path(__file__).parent / "sluicegate.json").read_text())
        if config["parameters"].get("fail") == "load":
            raise RuntimeError("the weights are not what they should be")

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if (x == 666).any():
                os._exit(1)
            if (x == 500).any():
                raise ValueError("the answer went wrong")
            if (x == 60).any():
                time.sleep(2.5)
            if (x == 61).any():
                time.sleep(4)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return answers
"""

#: Streams a text back by the word. The word `boom` is an error of this request, `die` ends the process.
STREAMING = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            sender = request.get_response_sender()
            for word in texts[0, 0].decode().split():
                time.sleep(0.01)
                if word == "die":
                    os._exit(1)
                error = pb_utils.TritonError("the answer went wrong") if word == "boom" else None
                piece = np.full(texts.shape, f"{word} ".encode(), object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", piece)], error))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def serving(**changes: Any) -> dict[str, Any]:
    return {
        "max_batch_size": 8,
        "inputs": [{"name": "x", "data_type": "FP32", "dims": [4]}],
        "outputs": [{"name": "y", "data_type": "FP32", "dims": [4]}],
        "dynamic_batching": {"preferred_batch_size": [], "max_queue_delay_us": 1000},
        "instance_group": [{"kind": "cpu", "count": 1}],
        "queue_policy": None,
        "warmup": [],
        "parameters": {},
        **changes,
    }


def text_serving(**changes: Any) -> dict[str, Any]:
    return serving(
        inputs=[{"name": "text", "data_type": "BYTES", "dims": [1]}],
        outputs=[
            {"name": "length", "data_type": "INT64", "dims": [1]},
            {"name": "total", "data_type": "INT32", "dims": [1]},
        ],
        warmup=[{"batch_size": 2, "inputs": {"text": ["good film"]}}],
        **changes,
    )


def manifest(
    blobs: MemoryBlobs,
    model: str,
    files: dict[str, bytes],
    own: dict[str, Any],
    *,
    backend: str = "sluicegate-onnx",
    image: str = "",
) -> dict[str, Any]:
    roles = {"tokenizer": "tokenizer", "artifact": "artifact"}
    return {
        "schema": "sluicegate/manifest/v2",
        "model": model,
        "files": [
            {"path": path, "role": roles[path.partition("/")[0]], "sha256": blobs.put(data), "size_bytes": len(data)}
            for path, data in files.items()
        ],
        "runtime": {"image": image or runtime_image.describe(VENV)["image"], "server": "triton", "backend": backend},
        "serving": own,
        "envelope": {},
        "provenance": {},
    }


def doubling(blobs: MemoryBlobs, model: str = "doubling", **changes: Any) -> dict[str, Any]:
    return manifest(blobs, model, {"artifact/model.onnx": doubling_graph()}, serving(**changes))


def words(blobs: MemoryBlobs, model: str = "words", **changes: Any) -> dict[str, Any]:
    files = {"artifact/model.onnx": word_count_graph(), "tokenizer/tokenizer.json": word_level_tokenizer()}
    return manifest(blobs, model, files, text_serving(**changes))


def misbehaving(blobs: MemoryBlobs, model: str = "misbehaving", **changes: Any) -> dict[str, Any]:
    return manifest(blobs, model, {"artifact/model.py": MISBEHAVING.encode()}, serving(**changes), backend="python")


def streaming(blobs: MemoryBlobs, model: str = "streaming", **changes: Any) -> dict[str, Any]:
    text = [{"name": "text", "data_type": "BYTES", "dims": [1]}]
    own = serving(inputs=text, outputs=[{**text[0], "name": "y"}], dynamic_batching=None, decoupled=True, **changes)
    return manifest(blobs, model, {"artifact/model.py": STREAMING.encode()}, own, backend="python")


def launch_spec(made: dict[str, Any], folder: Path, *, replica_id: int = 1) -> LaunchSpec:
    return LaunchSpec(replica_id, made["model"], "r1", digest_of(made), made, folder)
