"""ONNX headers at their edges, against what the onnx package itself writes and says."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from registry.core.formats import inspect
from registry.core.formats import onnx as reader
from tests.support.worlds.model_files import onnx_file

OUT = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
#: Names that differ between ONNX and the Open Inference Protocol.
OURS = {
    "FLOAT": "FP32",
    "STRING": "BYTES",
    "FLOAT16": "FP16",
    "DOUBLE": "FP64",
    "BFLOAT16": "BF16",
    "FLOAT4E2M1": "FP4E2M1",
}
#: Bits of one element; of others NumPy knows the bytes.
PACKED = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}


def facts(model: ModelProto | bytes) -> dict[str, Any]:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    found = inspect("artifact/model.onnx", io.BytesIO(data), len(data))
    assert found.problems == ()
    return found.facts


def refusal(model: ModelProto | bytes) -> str:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    (problem,) = inspect("artifact/model.onnx", io.BytesIO(data), len(data)).problems
    return problem.message


def weight(dims: list[int], raw: int | None, kind: int = TensorProto.FLOAT, name: str = "w") -> TensorProto:
    """A tensor with so many raw bytes; None for none."""
    tensor = TensorProto(name=name, data_type=kind, dims=dims)
    if raw is not None:
        tensor.raw_data = bytes(raw)
    return tensor


def outside(dims: list[int], **told: str) -> TensorProto:
    """A tensor of floats whose bytes lie in another file."""
    tensor = weight(dims, None)
    for key, value in told.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model(*weights: TensorProto, nodes: list[NodeProto] | None = None) -> ModelProto:
    return helper.make_model(helper.make_graph(nodes or [], "g", [], [OUT], list(weights)))


KNOWN = [(name, number) for name, number in TensorProto.DataType.items() if number]


@pytest.mark.parametrize(("name", "number"), KNOWN)
def test_a_tensor_has_the_bytes_of_its_type(name: str, number: int) -> None:
    said = facts(model(weight([3], None, number)))["tensors"]
    assert said == [["w", OURS.get(name, re.sub("FLOAT(?=[68])", "FP", name)), [3]]]
    if name == "STRING":
        assert facts(model(weight([3], 1, number)))["tensors"] == said  # texts have no fixed size
        return
    bits = PACKED.get(name) or helper.tensor_dtype_to_np_dtype(number).itemsize * 8
    for elements in (1, 3, 4, 5):
        size = (elements * bits + 7) // 8
        assert facts(model(weight([elements], size, number)))
        for other in (size - 1, size + 1):
            assert f"which is not its {other} bytes" in refusal(model(weight([elements], other, number)))


def test_unknown_types_are_refused() -> None:
    for number in (0, 29, 200):
        tensor = weight([1], None)
        tensor.data_type = number
        assert f"unknown data type {number}" in refusal(model(tensor))


def test_a_tensor_without_elements_has_no_bytes() -> None:
    assert facts(model(weight([0, 5], 0)))["tensors"] == [["w", "FP32", [0, 5]]]
    assert "which is not its 4 bytes" in refusal(model(weight([0], 4)))
    assert facts(model(weight([], 4)))["tensors"] == [["w", "FP32", []]]


def test_dimensions_are_sizes_and_at_most_32() -> None:
    assert facts(model(weight([1] * 32, 4)))["tensors"][0][2] == [1] * 32
    assert "has dimensions that are not sizes" in refusal(model(weight([1] * 33, 4)))
    packed = b"\x0a\x21" + b"\x01" * 33 + TensorProto(data_type=1, name="w").SerializeToString()
    graph = GraphProto(output=[OUT]).SerializeToString() + b"\x2a" + bytes([len(packed)]) + packed
    assert "field 1 holds more than 32 numbers" in refusal(b"\x3a" + bytes([len(graph)]) + graph)
    assert facts(model(weight([2**53 - 1], None)))["tensors"][0][2] == [2**53 - 1]
    for size in (2**53, -1):
        assert "has dimensions that are not sizes" in refusal(model(weight([size], None)))


def shaped(*dims: int | str | None) -> list[int]:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dims))
    found = facts(helper.make_model(helper.make_graph([], "g", [value], [OUT])))["inputs"]
    dims_read: list[int] = found[0][2]
    return dims_read


def test_dimensions_of_an_input_are_free_unless_they_are_sizes() -> None:
    assert shaped(0, 3, "batch", None, -1, 2**53 - 1, 2**53) == [0, 3, -1, -1, -1, 2**53 - 1, -1]
    assert shaped(*[1] * 32) == [1] * 32
    many = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1] * 33)
    assert "more than 32 dimensions" in refusal(helper.make_model(helper.make_graph([], "g", [many], [OUT])))
    unknown = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    assert facts(helper.make_model(helper.make_graph([], "g", [unknown], [OUT])))["inputs"] == [["x", "FP32", [-2]]]


def test_an_input_needs_a_name_and_a_weight_its_own() -> None:
    nameless = helper.make_tensor_value_info("", TensorProto.FLOAT, [1])
    assert "has no name" in refusal(helper.make_model(helper.make_graph([], "g", [nameless], [OUT])))
    assert "two of its initializers are called 'w'" in refusal(model(weight([1], 4), weight([1], 4)))
    both_sides = helper.make_graph([], "g", [OUT], [OUT])
    assert facts(helper.make_model(both_sides))["inputs"] == [["y", "FP32", [1]]]
    assert "the name 'y' occurs twice" in refusal(helper.make_model(helper.make_graph([], "g", [], [OUT, OUT])))


def test_long_names_are_cut() -> None:
    made = model(weight([1], 4, name="w" * 1029))
    made.producer_name = "p" * 201
    made.graph.input.add().CopyFrom(helper.make_tensor_value_info("x" * 1029, TensorProto.FLOAT, [1]))
    said = facts(made)
    assert (said["producer"], said["tensors"][0][0], said["inputs"][0][0]) == ("p" * 200, "w" * 1028, "x" * 1028)


def test_versions_as_the_file_states_them() -> None:
    made = helper.make_model(helper.make_graph([], "g", [], [OUT]), opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("d" * 201, 2**60), helper.make_opsetid("ai.onnx.ml", 3),
    ])  # fmt: skip
    made.ir_version = 2**60
    said = facts(made)
    assert said["ir_version"] == 2**53 - 1
    assert said["opsets"] == {"ai.onnx": 17, "d" * 200: 2**53 - 1, "ai.onnx.ml": 3}
    assert "producer" not in said and facts(model())["ir_version"] == model().ir_version
    bare = ModelProto(graph=helper.make_graph([], "g", [], [OUT]), opset_import=[helper.make_opsetid("a", 0)])
    bare.opset_import[0].ClearField("version")
    assert facts(bare)["opsets"] == {"a": 0}


def test_nodes_are_counted_in_the_graph_alone() -> None:
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])] * 3, "t", [], [OUT])
    nodes = [helper.make_node("If", ["x"], ["y"], then_branch=inner), helper.make_node("Relu", ["x"], ["y"])]
    assert facts(model(nodes=nodes))["nodes"] == 2
    assert facts(model())["nodes"] == 0


# --- bytes that lie in other files


def test_a_file_beside_the_graph_must_reach_as_far_as_its_furthest_tensor() -> None:
    far, near = outside([2], location="w.data", offset="100", length="8"), outside([1], location="w.data", offset="7")
    near.name = "n"
    assert facts(model(far, near))["external"] == facts(model(near, far))["external"] == {"w.data": 108}
    assert facts(model(outside([3], location="deep/w.data")))["external"] == {"deep/w.data": 12}
    assert facts(model(outside([3], location="./w.data")))["external"] == {"w.data": 12}


@pytest.mark.parametrize(
    "place", ["", "/w", "a\\w", "C:w", "../w", "a/../w", "././w", "./../w", "a/./w", "./", "a//w", "w/"]
)
def test_a_place_outside_the_folder_is_refused(place: str) -> None:
    assert "leaves the graph's folder or names no file" in refusal(model(outside([1], location=place, offset="0")))


def test_offsets_and_lengths_are_whole_numbers_of_up_to_16_digits() -> None:
    assert facts(model(outside([1], location="w", offset="0" * 15 + "8", length="0" * 15 + "4")))["external"] == {
        "w": 12
    }
    for told in (
        {"offset": "0" * 16 + "8"},
        {"offset": "-1"},
        {"offset": "٣"},
        {"length": "x"},
        {"offset": "", "length": "4"},
    ):
        assert "offset or length that is no number" in refusal(model(outside([1], location="w", **told)))
    assert "takes 4 bytes, and 5 are named in 'w'" in refusal(model(outside([1], location="w", length="5")))
    empty = outside([0], location="w", length="5")  # nothing is read of it
    assert facts(model(empty))["external"] == {"w": 0}


def test_bytes_beside_the_graph_end_where_json_still_tells_the_place() -> None:
    last = 2**53 - 1
    assert facts(model(outside([1], location="w", offset=str(last - 4))))["external"] == {"w": last}
    for tensor in (outside([1], location="w", offset=str(last - 3)), outside([last], location="w")):
        assert f"'w' would end beyond {last} bytes of 'w'" in refusal(model(tensor))


def test_long_entries_of_external_data_are_cut() -> None:
    assert facts(model(outside([1], location="w" * 1001)))["external"] == {"w" * 1000: 4}
    tensor = outside([1], location="w")
    tensor.external_data.add(key="offset" + "x" * 44, value="no number")  # 50 letters: another key, which says nothing
    assert facts(model(tensor))["external"] == {"w": 4}


def graph(tensor: TensorProto) -> GraphProto:
    return helper.make_graph([], "inner", [], [], [tensor])


def hide_in_graphs(made: ModelProto, tensor: TensorProto) -> None:
    made.graph.node.append(helper.make_node("Odd", [], ["c"], branches=[graph(weight([1], 4)), graph(tensor)]))


def hide_in_node_of_subgraph(made: ModelProto, tensor: TensorProto) -> None:
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensor)], "inner", [], [])
    made.graph.node.append(helper.make_node("If", ["x"], ["c"], then_branch=inner))


def hide_in_sparse_attribute(made: ModelProto, tensor: TensorProto) -> None:
    made.graph.node.add(op_type="Constant").attribute.add(name="v").sparse_tensor.values.CopyFrom(tensor)


def hide_in_sparse_attributes(made: ModelProto, tensor: TensorProto) -> None:
    made.graph.node.add(op_type="Constant").attribute.add(name="v").sparse_tensors.add().indices.CopyFrom(tensor)


def hide_in_sparse_of_subgraph(made: ModelProto, tensor: TensorProto) -> None:
    inner = GraphProto(name="inner")
    inner.sparse_initializer.add().indices.CopyFrom(tensor)
    made.graph.node.append(helper.make_node("If", ["x"], ["c"], then_branch=inner))


def hide_in_training(made: ModelProto, tensor: TensorProto) -> None:
    made.training_info.add().initialization.CopyFrom(graph(tensor))


@pytest.mark.parametrize(
    "hide",
    [
        hide_in_graphs, hide_in_node_of_subgraph, hide_in_sparse_attribute, hide_in_sparse_attributes,
        hide_in_sparse_of_subgraph, hide_in_training,
    ],
)  # fmt: skip
def test_whatever_can_hold_a_tensor_is_searched(hide: Callable[[ModelProto, TensorProto], None]) -> None:
    made = model()
    hide(made, outside([2], location="w.data"))
    assert facts(made)["external"] == {"w.data": 8} and facts(made)["tensors"] == []


def within(depth: int, innermost: GraphProto) -> GraphProto:
    """The graph inside so many others."""
    for _ in range(depth):
        node = helper.make_node("If", ["x"], ["y"], then_branch=innermost)
        innermost = helper.make_graph([node], "g", [], [])
    return innermost


def test_graphs_are_searched_twenty_deep_and_no_deeper() -> None:
    leaf = graph(outside([1], location="w"))
    for depth, is_read in ((19, True), (20, False)):
        made = ModelProto(graph=within(depth, leaf))
        made.graph.output.append(OUT)
        trained = model()
        trained.training_info.add().algorithm.CopyFrom(within(depth, leaf))
        called = model()
        node = helper.make_node("If", ["x"], ["y"], then_branch=within(depth - 1, leaf))
        called.functions.append(helper.make_function("d", "f", [], ["y"], [node], [helper.make_opsetid("", 17)]))
        for one in (made, trained, called):
            if is_read:
                assert facts(one)["external"] == {"w": 4}
            else:
                assert "nested more than 20 deep" in refusal(one)


@pytest.mark.parametrize("number", [8, 20, 25])
def test_a_number_where_a_message_belongs_is_refused(number: int) -> None:
    wrong = (number << 3).to_bytes(1, "little") if number < 16 else bytes([(number << 3) & 0x7F | 0x80, number >> 4])
    assert f"field {number} is a number, and a message was to be there" in refusal(onnx_file() + wrong + b"\x01")
    assert "field 7 is a number, and a message was to be there" in refusal(b"\x38\x01")


def test_a_graph_names_so_many_tensors_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_TENSORS", 3)
    three = {"inputs": [("a", "FP32", [1])], "outputs": [("b", "FP32", [1])]}
    assert facts(onnx_file(weights=[("w", "FP32", [1])], **three))  # type: ignore[arg-type]
    for more in (
        {"weights": [("w", "FP32", [1]), ("v", "FP32", [1])]},
        {"weights": [("w", "FP32", [1])], "inputs": [("a", "FP32", [1]), ("c", "FP32", [1])]},
        {"weights": [("w", "FP32", [1])], "outputs": [("a", "FP32", [1]), ("c", "FP32", [1])]},
    ):
        assert "names more than 3 tensors" in refusal(onnx_file(**{**three, **more}))  # type: ignore[arg-type]


def test_other_numbers_of_a_model_are_not_its_ir_version() -> None:
    made = model()
    made.model_version = 77
    assert facts(made)["ir_version"] == made.ir_version != 77


def test_a_tensor_without_a_type_has_no_size() -> None:
    untyped = TensorProto(name="w", dims=[2], raw_data=b"123")
    assert facts(model(untyped))["tensors"] == [["w", "OTHER", [2]]]
    bare = outside([2], location="w.data", offset="3")
    bare.ClearField("data_type")
    assert facts(model(bare))["external"] == {"w.data": 3}
