"""Small real ONNX models of each kind of answer, true and subtly wrong, and golden sets of what the true ones answer."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.contracts.serving_models import WORDS, graph_bytes
from validators.core.golden_set import GoldenItem

INPUTS, HIDDEN, OUTPUTS = 8, 32, 16
_RANDOM = np.random.default_rng(7)
FIRST: Final = _RANDOM.normal(0, 0.6, (INPUTS, HIDDEN)).astype(np.float32)
LAST: Final = _RANDOM.normal(0, 0.4, (HIDDEN, OUTPUTS)).astype(np.float32)
PRICE: Final = _RANDOM.normal(0, 0.5, (HIDDEN, 1)).astype(np.float32)
TABLE: Final = _RANDOM.normal(0, 1, (len(WORDS), OUTPUTS)).astype(np.float32)


def rotation(degrees: float) -> Any:
    """Turns the first two dimensions of each pair of an embedding by so much."""
    angle = np.deg2rad(degrees)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.kron(np.eye(OUTPUTS // 2), turn).astype(np.float32)


def embedding_graph(
    *, turned_by: float = 0.0, is_half: bool = False, is_batch_centred: bool = False, noise: float = 0.0
) -> bytes:
    """y[16] of length 1 from x[8]. `is_half`: weights and activations of 16 bits. `is_batch_centred`: less the batch's mean.

    `noise`: the standard deviation of what each answer gets on top, other each time.
    """
    middle = ["mean", "centred"] if is_batch_centred else []
    nodes = [
        *_hidden(is_half),
        helper.make_node("MatMul", ["h", "last"], ["z0"]),
        helper.make_node("Cast", ["z0"], ["z"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["z", "turn"], ["turned"]),
    ]
    if middle:
        nodes.append(helper.make_node("ReduceMean", ["turned", "axis0"], ["mean"], keepdims=1))
        nodes.append(helper.make_node("Sub", ["turned", "mean"], ["centred"]))
    nodes.append(helper.make_node("LpNormalization", ["centred" if middle else "turned"], ["unit"], axis=-1, p=2))
    if noise:
        nodes.append(helper.make_node("RandomNormalLike", ["unit"], ["noise"], scale=noise))
    nodes.append(helper.make_node("Sum", ["unit", "noise"] if noise else ["unit"], ["y"]))
    own = [_weight("first", FIRST, is_half), _weight("last", LAST, is_half), _weight("turn", rotation(turned_by))]
    return _graph(nodes, OUTPUTS, [*own, numpy_helper.from_array(np.array([0]), "axis0")])


def price_graph(*, factor: float = 1.0, is_half: bool = False) -> bytes:
    """y[1], about 10, from x[8], times the factor."""
    nodes = [
        *_hidden(is_half),
        helper.make_node("MatMul", ["h", "price"], ["z0"]),
        helper.make_node("Cast", ["z0"], ["z"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["z", "ten"], ["sum"]),
        helper.make_node("Mul", ["sum", "factor"], ["y"]),
    ]
    ten, by = np.array([10], np.float32), np.array([factor], np.float32)
    own = [
        _weight("first", FIRST, is_half),
        _weight("price", PRICE, is_half),
        _weight("ten", ten),
        _weight("factor", by),
    ]
    return _graph(nodes, 1, own)


def boxes_graph(*, larger: float = 1.0, forgets: bool = False) -> bytes:
    """Two boxes of 10 by 10, moved by x, as boxes[2, 4] beside scores[2] and classes[2]. `forgets`: the second is never sure."""
    boxes = np.array([[0, 0, 10, 10], [50, 50, 60, 60]], np.float32)
    scores = np.array([[0.9, 0.1 if forgets else 0.8]], np.float32)
    parts = {"base": boxes * np.float32(larger), "score": scores, "class": np.array([[1, 2]], np.float32)}
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis1"], ["by"], keepdims=1),
        helper.make_node("Unsqueeze", ["by", "axis2"], ["shift"]),
        helper.make_node("Add", ["base", "shift"], ["boxes"]),
        helper.make_node("Mul", ["by", "zero"], ["none"]),
        helper.make_node("Add", ["score", "none"], ["scores"]),
        helper.make_node("Add", ["class", "none"], ["classes"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", INPUTS])
    dims = {"boxes": ["n", 2, 4], "scores": ["n", 2], "classes": ["n", 2]}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, own) for name, own in dims.items()]
    axes = [numpy_helper.from_array(np.array([at]), f"axis{at}") for at in (1, 2)]
    weights = [_weight(name, values) for name, values in parts.items()]
    return graph_bytes(helper.make_graph(nodes, "boxes", [x], outputs, [*weights, _weight("zero", np.zeros(1)), *axes]))


def images(count: int) -> list[GoldenItem]:
    """Items of `boxes_graph`, with one box, one score and one class for each thing that is there."""
    xs = np.random.default_rng(13).normal(0, 1, (count, INPUTS)).astype(np.float32)
    shifts = xs.astype(np.float64).sum(axis=1)
    return [
        GoldenItem(
            f"i{at}", {"x": x.tolist()},
            expected={
                "boxes": [[by, by, 10 + by, 10 + by], [50 + by, 50 + by, 60 + by, 60 + by]],
                "scores": [0.9, 0.8], "classes": [1, 2],
            },
        )
        for at, (x, by) in enumerate(zip(xs, shifts.tolist(), strict=True))
    ]  # fmt: skip


def text_embedding_graph(*, counts_padding: bool) -> bytes:
    """The mean over a text's tokens of what each stands for. `counts_padding`: over those, too, that only fill it up."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "s"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["n", "s"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", OUTPUTS])
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"]),
        helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "axis2"], ["weight"]),
        helper.make_node("Mul", ["tokens", "weight"], ["own"]),
        helper.make_node("ReduceMean", ["tokens", "axis1"], ["padded"], keepdims=0),
        helper.make_node("ReduceSum", ["own", "axis1"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["kept", "axis1"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["honest"]),
        helper.make_node("Identity", ["padded" if counts_padding else "honest"], ["y"]),
    ]
    axes = [numpy_helper.from_array(np.array([at]), f"axis{at}") for at in (1, 2)]
    return graph_bytes(helper.make_graph(nodes, "texts", [ids, mask], [y], [_weight("table", TABLE), *axes]))


def vectors(count: int, *, is_price: bool = False) -> list[GoldenItem]:
    """Items with what the true model answers, computed here in 64 bits; two slices."""
    xs = np.random.default_rng(11).normal(0, 1, (count, INPUTS)).astype(np.float32)
    hidden = np.tanh(xs.astype(np.float64) @ FIRST)
    ys = hidden @ PRICE + 10 if is_price else hidden @ LAST
    ys = ys if is_price else ys / np.linalg.norm(ys, axis=1, keepdims=True)
    return [
        GoldenItem(f"i{at}", {"x": xs[at].tolist()}, slice="ab"[at % 2], expected={"y": ys[at].tolist()})
        for at in range(count)
    ]


def sentences(count: int) -> list[GoldenItem]:
    """Texts of 1 to 12 words, with the mean of what their words stand for."""
    random, known = np.random.default_rng(5), [word for word in WORDS if word.isalpha()]
    texts = [[known[int(at)] for at in random.integers(0, len(known), random.integers(1, 13))] for _ in range(count)]
    means = [np.mean([TABLE[WORDS[word]] for word in text], axis=0) for text in texts]
    return [
        GoldenItem(f"t{at}", {"text": " ".join(text)}, expected={"y": mean.tolist()})
        for at, (text, mean) in enumerate(zip(texts, means, strict=True))
    ]


def _hidden(is_half: bool) -> list[Any]:
    to = TensorProto.FLOAT16 if is_half else TensorProto.FLOAT
    return [
        helper.make_node("Cast", ["x"], ["x0"], to=to),
        helper.make_node("MatMul", ["x0", "first"], ["h0"]),
        helper.make_node("Tanh", ["h0"], ["h"]),
    ]


def _weight(name: str, values: Any, is_half: bool = False) -> Any:
    return numpy_helper.from_array(values.astype(np.float16 if is_half else np.float32), name)


def _graph(nodes: list[Any], outputs: int, weights: list[Any]) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", INPUTS])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])
    return graph_bytes(helper.make_graph(nodes, "net", [x], [y], weights))
