"""The estimate of an ONNX graph's memory against the memory that ONNX Runtime's own allocator takes on the processor.

The allocator's arena reports in its log how many bytes it holds, which no load of the machine changes.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto, helper, shape_inference

from registry.core.formats import inspect

#: The arena grows by the requested bytes alone, and logs to the standard error.
MEASURE = """
import json, sys
import numpy, onnxruntime
onnxruntime.set_default_logger_severity(1)
memory = onnxruntime.OrtMemoryInfo("Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT)
onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"arena_extend_strategy": 1}))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.add_session_config_entry("session.use_env_allocators", "1")
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print("RUN", file=sys.stderr, flush=True)
session.run(None, {"x": numpy.zeros(json.loads(sys.argv[2]), "f")})
"""


def zeros(name: str, *dims: int) -> Any:
    return helper.make_tensor(name, 1, dims, bytes(4 * prod(dims)), raw=True)


def made(nodes: list[Any], weights: list[Any], x: list[int | str], y: list[int | str]) -> ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, x)], [value("y", 1, y)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return shape_inference.infer_shapes(model)


def perceptron() -> ModelProto:
    """Three products: 256 → 2048 → 2048 → 256."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("MatMul", ["h", "b"], ["k"]),
        helper.make_node("MatMul", ["k", "c"], ["y"]),
    ]
    weights = [zeros("a", 256, 2048), zeros("b", 2048, 2048), zeros("c", 2048, 256)]
    return made(nodes, weights, ["n", 256], ["n", 256])


def pictures() -> ModelProto:
    """Two convolutions of 32 channels with a residual, which the runtime partly fuses."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1] * 4),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("Conv", ["r", "b"], ["q"], pads=[1] * 4),
        helper.make_node("Add", ["r", "q"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["y"]),
    ]
    weights = [zeros("a", 32, 3, 3, 3), zeros("b", 32, 32, 3, 3)]
    return made(nodes, weights, ["n", 3, 64, 64], ["n", 32, 1, 1])


@pytest.mark.parametrize(
    ("model", "shape"),
    [(perceptron, [64, 256]), (perceptron, [1024, 256]), (pictures, [8, 3, 64, 64]), (pictures, [32, 3, 64, 64])],
)
def test_the_estimate_is_within_half_and_twice_of_the_memory_that_the_runtime_takes(
    model: Any, shape: list[int], tmp_path: Path
) -> None:
    """The arena grows by 1.0 times the estimate for the perceptron, and by 0.68 times for pictures (fused, in place)."""
    data = model().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    facts = inspect("artifact/model.onnx", io.BytesIO(data), len(data)).facts
    (peak,) = facts["activations"]["peaks"]
    estimate = sum(size * (shape[0] if term else 1) for size, term in peak)
    command = [sys.executable, "-c", MEASURE, str(path), json.dumps(shape)]
    log = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stderr
    loading, running = log.split("RUN\n")
    grown = sum(int(size) for size in re.findall(r"Extended allocation by (\d+) bytes", running))
    measured = grown + 4 * prod(shape)  # the input is the caller's, outside the arena
    assert facts["activations"]["unsized"] == 0 and measured / 2 <= estimate <= 2 * measured, (estimate, measured)
    if model is perceptron:  # small weights have no reservation of their own
        reserved = sum(int(size) for size in re.findall(r"Reserving memory in BFCArena for Cpu size: (\d+)", loading))
        assert reserved == facts["weights_bytes"]
