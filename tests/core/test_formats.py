"""The readers of file formats: true files give facts, any other bytes a problem that says what to do."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
import zlib
from collections import Counter, OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from registry.core.file_rules import DATA_ENDINGS, PICKLE_ENDINGS
from registry.core.formats import KINDS, Findings, inspect, kind_of
from registry.core.formats import safetensors as safetensors_reader
from registry.core.formats.pickles import HIDDEN
from registry.core.schema import Json
from tests.model_files import (
    gguf_file,
    onnx_file,
    plan_file,
    safetensors_file,
    tokenizer_file,
    torchscript_file,
)

TWO = [("a.weight", "F32", [2, 3]), ("b.bias", "BF16", [4])]
GOOD: dict[str, bytes] = {
    "artifact/m.safetensors": safetensors_file(TWO, {"format": "pt"}),
    "artifact/model.onnx": onnx_file(weights=[("w", "FP32", [2, 2])]),
    "artifact/m.gguf": gguf_file(
        [("t", 0, [4, 2]), ("u", 1, [16])], {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b"]}
    ),
    "artifact/model.plan": plan_file(),
    "artifact/model.pt": torchscript_file(),
    "tokenizer/tokenizer.json": tokenizer_file({"[UNK]": 0, "good": 1}),
    "tokenizer/vocab.txt": b"[UNK]\ngood\n",
    "artifact/settings.yaml": b"a: 1\n",
    "artifact/model.py": b"import os\n",
    "artifact/weights.data": bytes(range(256)),
    "artifact/m.pkl": pickle.dumps(OrderedDict(a=1)),
}  # fmt: skip


def look(path: str, data: bytes, size: int | None = None) -> Findings:
    return inspect(path, io.BytesIO(data), len(data) if size is None else size)


def refusal(path: str, data: bytes, size: int | None = None) -> str:
    (problem,) = look(path, data, size).problems
    assert problem.field == path and problem.fix and problem.message.endswith(".")
    return f"{problem.message} {problem.fix}"


@pytest.mark.parametrize("path", GOOD)
def test_true_files_have_no_problem(path: str) -> None:
    assert look(path, GOOD[path]).problems == ()


def test_every_kind_has_a_true_file() -> None:
    assert {kind_of(path) for path in GOOD} == KINDS
    assert all(kind_of(f"x{ending}") in KINDS for ending in DATA_ENDINGS | PICKLE_ENDINGS)


def test_facts_of_safetensors() -> None:
    facts = look("artifact/m.safetensors", GOOD["artifact/m.safetensors"]).facts
    assert facts == {"tensors": [["a.weight", "F32", [2, 3]], ["b.bias", "BF16", [4]]], "metadata": {"format": "pt"}}


def test_facts_of_onnx_are_those_that_onnx_itself_reads() -> None:
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    packed = helper.make_tensor("packed", onnx.TensorProto.INT64, [3], [1, 2, 3])  # int64_data, no raw bytes
    value = helper.make_tensor_value_info
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["batch", 2]), value("w", onnx.TensorProto.FLOAT, [2, 3])],
        [value("y", onnx.TensorProto.FLOAT16, [None, 3]), helper.make_value_info("seq", sequence)],
        [weight, packed],
    )  # fmt: skip
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="p").SerializeToString()
    facts = look("artifact/model.onnx", data).facts
    assert facts["inputs"] == [["x", "FP32", [-1, 2]]]  # the weight that is listed as an input is none
    assert facts["outputs"] == [["y", "FP16", [-1, 3]], ["seq", "OTHER", [-2]]]
    assert facts["tensors"] == [["packed", "INT64", [3]], ["w", "FP32", [2, 3]]]
    assert (facts["nodes"], facts["opsets"], facts["producer"]) == (1, {"ai.onnx": 17}, "p")


CORPUS = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("*.onnx"))


def test_the_models_that_onnx_brings_are_read_as_onnx_reads_them() -> None:
    assert len(CORPUS) > 50
    for path in CORPUS:
        data = path.read_bytes()
        findings, graph = look("artifact/model.onnx", data), onnx.load_from_string(data).graph
        weights = {one.name: list(one.dims) for one in graph.initializer}
        assert findings.problems == (), path
        assert {name: shape for name, _, shape in findings.facts["tensors"]} == weights
        assert [one[0] for one in findings.facts["inputs"]] == [i.name for i in graph.input if i.name not in weights]
        assert [one[0] for one in findings.facts["outputs"]] == [one.name for one in graph.output]
        assert findings.facts["nodes"] == len(graph.node)


def test_the_tests_own_graph_is_one_that_onnx_can_read() -> None:
    model = onnx.load_from_string(onnx_file("note", weights=[("w", "FP16", [2, 5])]))
    assert model.doc_string == "note" and model.graph.input[0].name == "text"
    assert numpy_helper.to_array(model.graph.initializer[0]).shape == (2, 5)


def test_facts_of_gguf() -> None:
    facts = look("artifact/m.gguf", GOOD["artifact/m.gguf"]).facts
    assert facts["tensors"] == [["t", "F32", [4, 2]], ["u", "F16", [16]]]
    assert facts["metadata"] == {"general.architecture": "llama", "tokenizer.ggml.tokens": {"items": 2}}
    swapped = b"GGUF" + struct.pack(">IQQ", 3, 0, 1) + struct.pack(">Q", 1) + b"k" + struct.pack(">II", 4, 7)
    assert look("artifact/m.gguf", swapped).facts["metadata"] == {"k": 7}


def test_facts_of_a_tokenizer_and_of_what_is_none() -> None:
    assert look("tokenizer/tokenizer.json", GOOD["tokenizer/tokenizer.json"]).facts["tokenizer"]["vocabulary"] == 2
    assert look("tokenizer/tokenizer.json", b"{}").facts == {}
    assert look("artifact/config.json", b"[1]").facts == {}


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("path", [path for path in GOOD if not path.endswith((".pkl", ".pt"))])
def test_a_pickle_under_another_name_is_recognised(path: str, protocol: int) -> None:
    assert "a pickle stream" in refusal(path, pickle.dumps(Evil(), protocol=protocol))


@pytest.mark.parametrize(
    "text",
    ["R. Smith wrote this.", "o.k.", "b. the second", "in\nout\n.\n", "csv\nheader\nR.", "(a list)", "N.", "[UNK]\n[PAD]\n", "I like it.\n",
     "cat\ndog\n.\n", "i\nj\n(t.", "."],
)  # fmt: skip
def test_text_that_looks_a_little_like_a_pickle_is_text(text: str) -> None:
    assert look("tokenizer/vocab.txt", text.encode()).problems == ()


def test_an_old_pickle_that_runs_before_it_breaks_is_still_one() -> None:
    for attack in (b"cos\nsystem\n(S'id'\ntRgarbage", b"(S'id'\nios\nsystem\ngarbage", b"cos\nsystem\n)R"):
        assert "a pickle stream" in refusal("tokenizer/vocab.txt", attack)


def test_a_long_pickle_is_recognised_by_its_beginning() -> None:
    data = pickle.dumps({str(i): Evil() for i in range(20_000)}, protocol=4)
    assert len(data) > 1 << 17 and "a pickle stream" in refusal("artifact/weights.data", data)


def test_what_a_pickle_would_import_is_told() -> None:
    assert look("artifact/m.pkl", GOOD["artifact/m.pkl"]).facts == {"imports": ["collections.OrderedDict"]}
    assert look("artifact/m.pkl", pickle.dumps(Evil(), protocol=0)).facts["imports"] == ["__builtin__.print"]
    assert look("artifact/m.pth", torchscript_file(code=False)).facts["imports"] == ["__torch__.M"]


def pushed(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def zipped(data: bytes, how: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        archive.writestr("m/data.pkl", data)
    return out.getvalue()


SYSTEM = b"\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03."
PLAIN = pickle.dumps({"a": 1}, 2)
DECOY = (
    b"\x80\x04" + pushed("os") + b"\x94" + pushed("system") + b"\x9400" + pushed("collections") + b"0"
    + pushed("OrderedDict") + b"0h\x00h\x01\x93" + pushed("id") + b"\x85R."
)  # fmt: skip
#: The module's name is made while the stream is loaded.
MADE = (
    b"\x80\x04" + pushed("builtins") + pushed("str") + b"\x93" + pushed("os") + b"\x85R" + pushed("system") + b"\x93."
)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("m.pkl", SYSTEM, ["os.system"]),
        ("m.pkl", DECOY, ["os.system"]),
        ("m.pkl", MADE, ["builtins.str", HIDDEN]),
        ("m.pth", PLAIN + SYSTEM, ["os.system"]),
        ("m.pth", PLAIN + b"raw storages", []),
        ("m.pth", zipped(SYSTEM, zipfile.ZIP_STORED), ["os.system"]),
        ("m.pth", zipped(SYSTEM, zipfile.ZIP_DEFLATED), [HIDDEN]),
        ("m.joblib", zlib.compress(SYSTEM), [HIDDEN]),
        ("m.pkl", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 20) + b"x" * (1 << 20) + b"0" + SYSTEM[2:], [HIDDEN]),
        ("m.pkl", SYSTEM[:-1], ["os.system", HIDDEN]),
        ("m.pkl", pickle.dumps([OrderedDict(a=Counter()), deque()], 4),
         ["collections.OrderedDict", "collections.Counter", "collections.deque"]),
    ],
)  # fmt: skip
def test_a_pickle_hides_no_import(name: str, data: bytes, told: list[str]) -> None:
    assert look(f"artifact/{name}", data).facts == {"imports": told}


@pytest.mark.parametrize(
    "text",
    ["!!python/object:os.x {}", "%TAG !p! tag:yaml.org,2002:\n---\n!p!python/object/apply:os.getpid []",
     "!!%70ython/object/apply:os.getpid []", "\ufeff%TAG !p! tag:yaml.org,2002:\n---\n!p!x 1"],
)  # fmt: skip
def test_yaml_makes_no_objects_under_any_name(text: str) -> None:
    assert "tag" in refusal("artifact/a.yaml", text.encode())


def header_of(**tensors: tuple[Any, Any, Any]) -> bytes:
    """A safetensors file without data, whose header says (data type, shape, offsets) for each name."""
    entries = {n: {"dtype": d, "shape": s, "data_offsets": o} for n, (d, s, o) in tensors.items()}
    return safetensors_file([], header=entries)


def outside(**told: str) -> bytes:
    """A graph with its one weight in another file."""
    return onnx_file(weights=[("w", "FP32", [2])], external=told)


FOUR_SAID_TO_BE_SIX = onnx_file(weights=[("w", "FP32", [2, 2])]).replace(b"\x08\x02\x08\x02", b"\x08\x02\x08\x03")


@pytest.mark.parametrize(
    ("path", "data", "says"),
    [
        ("artifact/model.onnx", b"", "it is empty"),
        ("artifact/model.onnx", b"not really a graph", "begins no field"),
        ("artifact/model.onnx", onnx_file()[:-20], "goes on to byte"),
        ("artifact/model.onnx", onnx_file(outputs=[]), "one graph with an output"),
        ("artifact/model.onnx", onnx_file() + onnx_file(), "one graph with an output"),
        ("artifact/model.onnx", onnx_file(inputs=[("a", "FP32", [1]), ("a", "FP32", [1])]), "occurs twice"),
        ("artifact/model.onnx", FOUR_SAID_TO_BE_SIX, "which is not its 16 bytes"),
        ("artifact/model.onnx", outside(location="../../etc/passwd"), "leaves the graph's folder"),
        ("artifact/model.onnx", outside(location="/etc/passwd"), "leaves the graph's folder"),
        ("artifact/model.onnx", outside(location="w.data", length="9"), "and 9 are named"),
        ("artifact/model.onnx", onnx_file(inputs=[("a\x00", "FP32", [1])]), "cannot be stored"),
        ("artifact/m.safetensors", b"abc", "were to follow"),
        ("artifact/m.safetensors", struct.pack("<Q", 1 << 60) + b"{}", "claims"),
        ("artifact/m.safetensors", safetensors_file(TWO)[:-1], "follow the header"),
        ("artifact/m.safetensors", safetensors_file(TWO) + b"x", "follow the header"),
        ("artifact/m.safetensors", safetensors_file([], header=[]), "does not begin with {"),
        ("artifact/m.safetensors", safetensors_file([], header=b'{"a": 1, "a": 2}'), "occurs twice"),
        ("artifact/m.safetensors", safetensors_file([], header=b'{"a":' + b"[" * 5000), "too deep"),
        ("artifact/m.safetensors", header_of(a=("F32", [1], [0, 8])), "not the 8 bytes"),
        ("artifact/m.safetensors", header_of(a=("F99", [], [0, 4])), "unknown data type"),
        ("artifact/m.safetensors", header_of(a=("F32", [True], [0, 4])), "not sizes"),
        ("artifact/m.safetensors", header_of(a=("U8", [1], [1, 2])), "a hole before byte 1"),
        ("artifact/m.safetensors", header_of(a=("U8", [1], [0, 1]), b=("U8", [1], [0, 1])), "overlaps"),
        ("artifact/m.safetensors", safetensors_file([], header={"__metadata__": {"a": 1}}), "not an object of texts"),
        ("artifact/m.gguf", b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version is 9"),
        ("artifact/m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "claims"),
        ("artifact/m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 50), "a text of"),
        ("artifact/m.gguf", gguf_file([("t", 0, [4, 2])])[:-8], "reach to byte"),
        ("artifact/m.gguf", gguf_file([("t", 2, [5])]), "packs 32"),
        ("artifact/m.gguf", b"GGML" + bytes(40), "does not begin with GGUF"),
        ("artifact/model.plan", b"ftrt", "fewer than"),
        ("artifact/model.plan", struct.pack("<I", 30) + b'{"a": 1}' + bytes(60), "metadata before the plan"),
        ("artifact/model.plan", bytes(100), "does not begin as a TensorRT plan"),
        ("artifact/model.pt", torchscript_file(code=False), "no TorchScript code"),
        ("artifact/model.pt", pickle.dumps([1]), "a bare pickle"),
        ("artifact/model.pt", torchscript_file()[:-30], "no table of contents"),
        ("tokenizer/tokenizer.json", b'{"a": ', "is not JSON"),
        ("tokenizer/tokenizer.json", b'{"a": 1, "a": 2}', "occurs twice"),
        ("tokenizer/tokenizer.json", b"\xff\xfe", "not UTF-8 at byte 0"),
        ("tokenizer/tokenizer.json", b"[" * 100_000, "too deep"),
        ("tokenizer/tokenizer.json", b"[" + b"9" * 5000 + b"]", "cannot be read"),
        ("tokenizer/tokenizer.json", b"[" * 3_000_001, "too many parts"),
        ("tokenizer/vocab.txt", b"a\x00b", "NUL bytes"),
        ("tokenizer/vocab.txt", gzip.compress(b"a", mtime=0), "a gzip archive"),
        ("tokenizer/vocab.txt", b"\x7fELF" + bytes(9), "a program"),
        ("artifact/weights.data", torchscript_file(), "a zip archive"),
        ("artifact/settings.yaml", b"a: !!python/object/apply:os.system [id]\n", "makes Python objects"),
        ("artifact/m.safetensors", torchscript_file(), "a zip archive"),
    ],
)  # fmt: skip
def test_lies_are_named(path: str, data: bytes, says: str) -> None:
    assert says in refusal(path, data)


@pytest.mark.parametrize("path", [p for p in GOOD if kind_of(p) not in {"raw", "text", "yaml", "python", "pickle"}])
def test_a_file_cut_short_is_refused(path: str) -> None:
    data = GOOD[path]
    assert refusal(path, data[: len(data) // 2]) and refusal(
        path, data[:-1] if kind_of(path) != "tensorrt" else data[:20]
    )


def nested(tensor: Any, how: str) -> bytes:
    """A model that keeps a tensor somewhere deep."""
    attribute = {
        "constant": lambda: helper.make_node("Constant", [], ["c"], value=tensor),
        "list": lambda: helper.make_node("Odd", [], ["c"], values=[tensor]),
        "subgraph": lambda: helper.make_node(
            "If", ["x"], ["c"], then_branch=helper.make_graph([], "t", [], [], [tensor])
        ),
    }.get(how)
    out = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([attribute()] if attribute else [], "g", [out], [out])
    model = helper.make_model(graph)
    if how == "sparse":
        model.graph.sparse_initializer.add().values.CopyFrom(tensor)
    elif how == "function":
        node = helper.make_node("Constant", [], ["c"], value=tensor)
        model.functions.append(helper.make_function("d", "f", [], ["c"], [node], [helper.make_opsetid("", 17)]))
    elif how == "training":
        model.training_info.add().algorithm.CopyFrom(helper.make_graph([], "t", [], [], [tensor]))
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize("how", ["constant", "list", "subgraph", "sparse", "function", "training"])
def test_bytes_outside_the_folder_are_found_however_deep(how: str) -> None:
    tensor = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [0.0, 0.0])
    tensor.ClearField("float_data")
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    assert "leaves the graph's folder" in refusal("artifact/model.onnx", nested(tensor, how))
    entry.value = "w.data"
    assert look("artifact/model.onnx", nested(tensor, how)).facts["external"] == {"w.data": 8}


def test_graphs_in_graphs_end_somewhere() -> None:
    inner = helper.make_graph([], "g", [], [])
    for _ in range(25):
        inner = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=inner)], "g", [], [])
    inner.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1]))
    assert "nested more than 20 deep" in refusal("artifact/model.onnx", helper.make_model(inner).SerializeToString())


def test_a_file_shorter_than_its_size_says_so() -> None:
    assert "its size was given" in refusal("artifact/m.safetensors", safetensors_file([])[:9], size=500)


def test_empty_text_is_in_order() -> None:
    for path in ("artifact/__init__.py", "tokenizer/merges.txt", "artifact/a.data", "artifact/a.yaml"):
        assert look(path, b"").problems == ()


def test_headers_are_read_and_weights_are_not() -> None:
    class Counted(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            Counted.taken += len(data)
            return data

    many = [(f"w{i}", "FP32", [1024, 256]) for i in range(16)]
    for path, data in (
        ("artifact/model.onnx", onnx_file(weights=many)),
        ("artifact/m.safetensors", safetensors_file([(n, "F32", s) for n, _, s in many])),
        ("artifact/m.gguf", gguf_file([(n, 0, s) for n, _, s in many])),
    ):
        Counted.taken = 0
        findings = inspect(path, Counted(data), len(data))
        assert len(findings.facts["tensors"]) == 16 and len(data) > 1 << 24
        assert Counted.taken < 1 << 21, path


ANY_PATH = st.sampled_from(sorted(GOOD))


@settings(max_examples=400)
@given(ANY_PATH, st.binary(max_size=400), st.integers(0, 600))
def test_any_bytes_give_facts_or_one_problem(path: str, data: bytes, size: int) -> None:
    _is_total(path, data, size)


@settings(max_examples=400)
@given(ANY_PATH, ANY_PATH, st.data())
@pytest.mark.slow
def test_spoilt_files_give_facts_or_one_problem(path: str, content: str, draw: st.DataObject) -> None:
    data = bytearray(GOOD[content])
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at : at + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=9))
        if not data:
            break
    _is_total(path, bytes(data), len(data))


@settings(max_examples=200)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)))  # fmt: skip
def test_any_json_as_a_header_or_a_tokenizer(value: Any) -> None:
    _is_total("artifact/m.safetensors", safetensors_file([], header=value), None)
    _is_total("artifact/m.safetensors", safetensors_file([], header={"a": value, "__metadata__": value}), None)
    text = json.dumps({"model": {"vocab": value, "merges": value}, "added_tokens": value, "normalizer": value})
    _is_total("tokenizer/tokenizer.json", text.encode(), None)


def _is_total(path: str, data: bytes, size: int | None) -> None:
    findings = look(path, data, size)
    assert findings.kind in KINDS
    if findings.problems:
        (problem,) = findings.problems
        assert problem.field == path and problem.message and problem.fix and not findings.facts
    else:
        problems: list[Any] = []
        Json().read(findings.facts, path, problems)
        assert not problems and json.dumps(findings.facts)


def test_sizes_of_safetensors_types_are_numpys_where_it_has_them() -> None:
    for name, data_type in {"F32": "f4", "F64": "f8", "F16": "f2", "I64": "i8", "U8": "u1", "BOOL": "?"}.items():
        assert safetensors_reader.BITS[name] == np.dtype(data_type).itemsize * 8
