"""The sentiment model as one ONNX graph: a six-layer BERT encoder, mean pooling, a unit-length embedding, a head.

Built from the safetensors weights with `onnx.helper` alone; no deep-learning framework is needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
WIDTH, HEADS, LAYERS = 384, 12, 6
OPSET, IR_VERSION = 20, 9
#: Added to the attention logits of padding: far below any real logit, far above the smallest float32.
MASKED = -10_000.0


def read_safetensors(path: Path) -> dict[str, Array]:
    """Every float32 tensor of the file by name, as views of one buffer.

    Source: the safetensors format: 8 bytes little-endian header length, a JSON header
    {name: {dtype, shape, data_offsets}}, then the raw data.
    """
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors: dict[str, Array] = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            continue  # position ids, which the graph makes itself
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data, dtype="<f4", count=(end - begin) // 4, offset=8 + length + begin)
        tensors[name] = raw.reshape(entry["shape"])
    return tensors


def build_graph(weights: dict[str, Array], head_weight: Array, head_bias: Array) -> onnx.ModelProto:
    """A checked model: (input_ids, attention_mask, token_type_ids: INT64 [batch, tokens]) to
    (embedding FP32 [batch, 384], probabilities FP32 [batch, classes]).
    """
    return _Builder(weights).model(head_weight, head_bias)


class _Builder:
    """Collects nodes and initializers; every method returns the name of the tensor that it made."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Array) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def integers(self, name: str, *values: int) -> str:
        return self.constant(name, np.array(values, dtype=np.int64))

    def number(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, dtype=np.float32))

    def linear(self, x: str, prefix: str) -> str:
        weight = self.constant(f"{prefix}.w", self.weights[f"{prefix}.weight"].T)
        return self.node(
            "Add", [self.node("MatMul", [x, weight]), self.constant(f"{prefix}.b", self.weights[f"{prefix}.bias"])]
        )

    def layer_norm(self, x: str, prefix: str) -> str:
        scale = self.constant(f"{prefix}.g", self.weights[f"{prefix}.weight"])
        shift = self.constant(f"{prefix}.c", self.weights[f"{prefix}.bias"])
        return self.node("LayerNormalization", [x, scale, shift], axis=-1, epsilon=1e-12)

    def embeddings(self) -> str:
        word = self.node(
            "Gather", [self.constant("word", self.weights["embeddings.word_embeddings.weight"]), "input_ids"]
        )
        kind = self.node(
            "Gather", [self.constant("type", self.weights["embeddings.token_type_embeddings.weight"]), "token_type_ids"]
        )
        # Shape(start, end) and Slice, not Range(Gather(Shape)): onnxruntime's optimizer breaks the latter.
        tokens = self.node("Shape", ["input_ids"], start=1, end=2)
        table = self.constant("position", self.weights["embeddings.position_embeddings.weight"])
        position = self.node("Slice", [table, self.integers("from_0", 0), tokens, self.integers("axis_0", 0)])
        total = self.node("Add", [self.node("Add", [word, kind]), position])
        return self.layer_norm(total, "embeddings.LayerNorm")

    def mask_bias(self, mask: str) -> str:
        """0 where there is a token, MASKED where there is padding; [batch, 1, 1, tokens]."""
        wide = self.node("Unsqueeze", [mask, self.integers("axes_1_2", 1, 2)])
        absent = self.node("Sub", [self.number("one", 1.0), wide])
        return self.node("Mul", [absent, self.number("masked", MASKED)])

    def heads(self, x: str, prefix: str, order: tuple[int, ...]) -> str:
        shape = self.integers("split_heads", 0, 0, HEADS, WIDTH // HEADS)
        return self.node("Transpose", [self.node("Reshape", [self.linear(x, prefix), shape])], perm=order)

    def attention(self, x: str, layer: str, bias: str) -> str:
        query = self.heads(x, f"{layer}.attention.self.query", (0, 2, 1, 3))
        key = self.heads(x, f"{layer}.attention.self.key", (0, 2, 3, 1))
        value = self.heads(x, f"{layer}.attention.self.value", (0, 2, 1, 3))
        logits = self.node("Mul", [self.node("MatMul", [query, key]), self.number("scale", (WIDTH / HEADS) ** -0.5)])
        share = self.node("Softmax", [self.node("Add", [logits, bias])], axis=-1)
        context = self.node("Transpose", [self.node("MatMul", [share, value])], perm=(0, 2, 1, 3))
        return self.node("Reshape", [context, self.integers("join_heads", 0, 0, WIDTH)])

    def encoder_layer(self, x: str, index: int, bias: str) -> str:
        layer = f"encoder.layer.{index}"
        attended = self.linear(self.attention(x, layer, bias), f"{layer}.attention.output.dense")
        x = self.layer_norm(self.node("Add", [attended, x]), f"{layer}.attention.output.LayerNorm")
        wide = self.node("Gelu", [self.linear(x, f"{layer}.intermediate.dense")])
        return self.layer_norm(
            self.node("Add", [self.linear(wide, f"{layer}.output.dense"), x]), f"{layer}.output.LayerNorm"
        )

    def pooled(self, x: str, mask: str) -> str:
        """The mean over real tokens, scaled to length 1."""
        column = self.node("Unsqueeze", [mask, self.integers("axis_2", 2)])
        axis = self.integers("axis_1", 1)
        total = self.node("ReduceSum", [self.node("Mul", [x, column]), axis], keepdims=0)
        count = self.node("ReduceSum", [column, axis], keepdims=0)
        return self.node("LpNormalization", [self.node("Div", [total, count])], axis=-1, p=2)

    def model(self, head_weight: Array, head_bias: Array) -> onnx.ModelProto:
        mask = self.node("Cast", ["attention_mask"], to=TensorProto.FLOAT)
        x, bias = self.embeddings(), self.mask_bias(mask)
        for index in range(LAYERS):
            x = self.encoder_layer(x, index, bias)
        embedding = self.pooled(x, mask)
        scores = self.node("MatMul", [embedding, self.constant("head.w", head_weight.astype(np.float32))])
        logits = self.node("Add", [scores, self.constant("head.b", head_bias.astype(np.float32))])
        probabilities = self.node("Softmax", [logits], axis=-1)
        self.nodes.append(helper.make_node("Identity", [embedding], ["embedding"]))
        self.nodes.append(helper.make_node("Identity", [probabilities], ["probabilities"]))
        return self._checked(classes=int(head_weight.shape[1]))

    def _checked(self, *, classes: int) -> onnx.ModelProto:
        tokens = ["batch", "tokens"]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, tokens)
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ]
        outputs = [
            helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", WIDTH]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", classes]),
        ]
        graph = helper.make_graph(self.nodes, "sentiment", inputs, outputs, list(self.constants.values()))
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="sluicegate-example"
        )
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model)
        return model
