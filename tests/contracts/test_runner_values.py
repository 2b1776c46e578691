"""Values of every data type through the runner of ONNX graphs, in a real Triton: each comes back as it was sent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper

from registry.core.serving import sent_dims
from serving.ports import HTTP, InferenceError
from serving.servers.adapters.triton import TritonServer
from serving.servers.adapters.triton_requests import parcel_of
from serving.targets.agent import warmup
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.triton_rig import local_launcher
from validators.core.contract import compare_answer, compare_declared, tensors_of

pytestmark = [pytest.mark.real("triton", "onnx"), pytest.mark.shows("backend:triton/sluicegate-onnx")]

#: Data type → (ONNX's type, three values at the edges of the type).
EDGES: dict[str, tuple[int, Any]] = {
    "BOOL": (TensorProto.BOOL, np.array([True, False, True])),
    **{
        f"{sign}INT{bits}": (
            getattr(TensorProto, f"{sign}INT{bits}"),
            np.array([(info := np.iinfo(f"{sign.lower()}int{bits}")).min, 1, info.max], f"{sign.lower()}int{bits}"),
        )
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
    "FP16": (TensorProto.FLOAT16, np.array([-65504, 2**-24, 65504], np.float16)),
    "FP32": (TensorProto.FLOAT, np.array([np.finfo(np.float32).min, 2.0**-149, np.finfo(np.float32).max], np.float32)),
    "FP64": (TensorProto.DOUBLE, np.array([np.finfo(np.float64).min, 5e-324, np.finfo(np.float64).max])),
    "BYTES": (TensorProto.STRING, np.array([b"plain", "日本語 b'x'".encode(), b""], object)),
}


def graph() -> bytes:
    """An output for each input, equal to it."""
    tensors = {
        side: [helper.make_tensor_value_info(f"{name}_{side}", kind, ["n", 3]) for name, (kind, _) in EDGES.items()]
        for side in ("in", "out")
    }
    nodes = [helper.make_node("Identity", [f"{name}_in"], [f"{name}_out"]) for name in EDGES]
    return made.graph_bytes(helper.make_graph(nodes, "echo", tensors["in"], tensors["out"]))


def last_graph() -> bytes:
    """The id in the last position of each text: of a model that pools there."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "s"])
    last = helper.make_tensor_value_info("last", TensorProto.INT64, ["n", 1])
    node = helper.make_node("Gather", ["input_ids", "at"], ["last"], axis=1)
    at = helper.make_tensor("at", TensorProto.INT64, [1], [-1])
    return made.graph_bytes(helper.make_graph([node], "last", [ids], [last], [at]))


Start = Callable[[dict[str, Any], dict[str, bytes]], tuple[TritonServer, str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A client and an address of a server with these files."""
    blobs, held = MemoryBlobs(), contextlib.ExitStack()
    launcher = held.enter_context(local_launcher(tmp_path, blobs))

    def started(serving: dict[str, Any], files: dict[str, bytes]) -> tuple[TritonServer, str]:
        manifest = made.manifest(blobs, "echo", files, serving)
        running = launcher.start(launch_spec(manifest, launcher.folder_for(1, "echo", "r1")))
        launcher.await_loaded(running, "echo", timeout_s=60)
        client = TritonServer(running.host, running.http_port, running.grpc_port)
        held.callback(client.close)
        return client, f"http://{running.host}:{running.http_port}/v2/models/echo/infer"

    with held:
        yield started


def tensors(side: str) -> list[dict[str, Any]]:
    return [{"name": f"{name}_{side}", "data_type": name, "dims": [3]} for name in EDGES]


def test_a_value_of_each_type_comes_back_as_it_was_sent(start: Start) -> None:
    client, address = start(
        made.serving(inputs=tensors("in"), outputs=tensors("out")), {"artifact/model.onnx": graph()}
    )
    sent = {f"{name}_in": np.stack([values, values[::-1]]) for name, (_, values) in EDGES.items()}
    found = client.infer("echo", sent, timeout_s=30).outputs
    for name in EDGES:
        assert found[f"{name}_out"].tolist() == sent[f"{name}_in"].tolist(), name

    def plain(name: str) -> Any:
        rows = sent[f"{name}_in"].tolist()
        return [[one.decode() for one in row] for row in rows] if name == "BYTES" else rows

    in_json = [name for name in EDGES if name != "FP16"]  # which has no form in JSON
    with_fp16 = {**{name: plain(name) for name in in_json}}
    body = {
        "inputs": [
            {"name": f"{name}_in", "datatype": name, "shape": [2, 3], "data": with_fp16[name]} for name in in_json
        ],
        "outputs": [{"name": f"{name}_out"} for name in in_json],
    }
    # FP16 goes in its binary form behind the JSON, as the protocol's binary extension has it
    halves = sent["FP16_in"].tobytes()
    body["inputs"].append(
        {"name": "FP16_in", "datatype": "FP16", "shape": [2, 3], "parameters": {"binary_data_size": len(halves)}}
    )
    head = json.dumps(body).encode()
    answer = httpx.post(
        address, content=head + halves, headers={"Inference-Header-Content-Length": str(len(head))}, timeout=30
    )
    assert answer.status_code == 200, answer.text
    for output in answer.json()["outputs"]:
        name = output["name"].removesuffix("_out")
        assert np.array(output["data"], object).reshape(2, 3).tolist() == plain(name), name


def test_a_text_with_a_zero_byte_comes_back_and_one_that_is_no_utf8_is_its_senders_mistake(start: Start) -> None:
    one = [{"name": "BYTES_in", "data_type": "BYTES", "dims": [3]}]
    text = helper.make_tensor_value_info("BYTES_in", TensorProto.STRING, ["n", 3])
    out = helper.make_tensor_value_info("BYTES_out", TensorProto.STRING, ["n", 3])
    node = helper.make_node("Identity", ["BYTES_in"], ["BYTES_out"])
    file = made.graph_bytes(helper.make_graph([node], "echo", [text], [out]))
    outputs = [{"name": "BYTES_out", "data_type": "BYTES", "dims": [3]}]
    client, _ = start(made.serving(inputs=one, outputs=outputs), {"artifact/model.onnx": file})
    texts = np.array([[b"he\x00llo", b"x", b"y"]], object)
    assert client.infer("echo", {"BYTES_in": texts}, timeout_s=30).outputs["BYTES_out"].tolist() == texts.tolist()
    with pytest.raises(InferenceError, match="'BYTES_in' is not UTF-8") as caught:
        client.infer("echo", {"BYTES_in": np.array([[b"\xff", b"x", b"y"]], object)}, timeout_s=30)
    assert caught.value.reason == "rejected"


@pytest.mark.parametrize("direction", ["Left", "Right"])
def test_texts_are_padded_on_the_side_that_the_tokenizer_states(start: Start, direction: str) -> None:
    tokenizer = json.loads(made.word_level_tokenizer())
    tokenizer["padding"] = {
        "strategy": "BatchLongest", "direction": direction, "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    files = {"artifact/model.onnx": last_graph(), "tokenizer/tokenizer.json": json.dumps(tokenizer).encode()}
    serving = made.serving(
        inputs=[{"name": "text", "data_type": "BYTES", "dims": [1]}],
        outputs=[{"name": "last", "data_type": "INT64", "dims": [1]}],
    )
    client, _ = start(serving, files)
    texts = np.array([[b"good"], [b"good bad film"], [b"bad"]], object)
    together = client.infer("echo", {"text": texts}, timeout_s=30).outputs["last"][:, 0].tolist()
    alone = [
        client.infer("echo", {"text": texts[at : at + 1]}, timeout_s=30).outputs["last"][0, 0].tolist()
        for at in range(3)
    ]
    assert (together == alone) is (direction == "Left"), (together, alone)
    assert len(set(alone)) == 3


@pytest.mark.parametrize(("direction", "kept"), [("Left", "film"), ("Right", "bad")])
def test_a_text_is_cut_on_the_side_that_the_tokenizer_states(start: Start, direction: str, kept: str) -> None:
    """Also if the release states another length than the file."""
    tokenizer = json.loads(made.word_level_tokenizer())
    tokenizer["truncation"] = {"direction": direction, "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    files = {"artifact/model.onnx": last_graph(), "tokenizer/tokenizer.json": json.dumps(tokenizer).encode()}
    serving = made.serving(
        inputs=[{"name": "text", "data_type": "BYTES", "dims": [1]}],
        outputs=[{"name": "last", "data_type": "INT64", "dims": [1]}],
        parameters={"max_tokens": "2"},
    )
    client, _ = start(serving, files)
    found = client.infer("echo", {"text": np.array([[b"good bad film"]], object)}, timeout_s=30).outputs["last"]
    assert found.tolist() == [[made.WORDS[kept]]]


#: Shape of a graph's tensor for each item, without and with a batch axis: one number, one size, a size of one.
RANKS: dict[str, list[int]] = {"none": [], "free": [-1], "one": [1]}


def rank_graph(*, has_batch_axis: bool) -> bytes:
    """y = 2x for a tensor of each rank at the edge."""
    sides: dict[str, list[Any]] = {"x": [], "y": []}
    for name, dims in RANKS.items():
        shape = [
            *(["n"] if has_batch_axis else []),
            *(f"{name}_{at}" if size < 0 else size for at, size in enumerate(dims)),
        ]
        for side, values in sides.items():
            values.append(helper.make_tensor_value_info(f"{side}_{name}", TensorProto.FLOAT, shape))
    nodes = [helper.make_node("Add", [f"x_{name}", f"x_{name}"], [f"y_{name}"]) for name in RANKS]
    return made.graph_bytes(helper.make_graph(nodes, "ranks", sides["x"], sides["y"]))


@pytest.mark.parametrize("batch", [0, 8])
def test_tensors_of_one_number_are_sent_and_answered_as_one_size_of_one(start: Start, batch: int) -> None:
    declared = {
        side: [{"name": f"{name[0]}_{rank}", "data_type": "FP32", "dims": dims} for rank, dims in RANKS.items()]
        for side, name in (("inputs", "x"), ("outputs", "y"))
    }
    serving = made.serving(**declared, max_batch_size=batch)
    client, address = start(serving, {"artifact/model.onnx": rank_graph(has_batch_axis=batch > 0)})
    for inputs in warmup.requests(serving, {}):
        warmup.check(client.infer("echo", inputs, timeout_s=30), serving)
    lead = [3] if batch else []
    sent = {
        f"x_{rank}": np.arange(np.prod([*lead, *(abs(d) for d in sent_dims(dims))]), dtype=np.float32).reshape(
            [*lead, *(abs(d) for d in sent_dims(dims))]
        )
        for rank, dims in RANKS.items()
    }
    found = client.infer("echo", sent, timeout_s=30).outputs
    for rank in RANKS:
        assert np.array_equal(found[f"y_{rank}"], 2 * sent[f"x_{rank}"]), rank
    inputs, outputs = client.metadata("echo")
    assert {one.name: list(one.dims) for one in outputs} == {f"y_{rank}": sent_dims(d) for rank, d in RANKS.items()}
    assert compare_answer(tensors_of(serving, "outputs"), found, batch_size=3 if batch else None) == []
    assert compare_declared("input", tensors_of(serving, "inputs"), inputs, by="the server") == []
    body = {
        "inputs": [
            {"name": n, "datatype": "FP32", "shape": list(v.shape), "data": v.ravel().tolist()} for n, v in sent.items()
        ]
    }
    answer = httpx.post(address, json=body, timeout=30).json()
    assert {one["name"]: one["shape"] for one in answer["outputs"]} == {n: list(v.shape) for n, v in found.items()}


NAMES = [
    "sepal length (cm)",
    "年齢",
    "/in/x",
    'it\'s "quoted"',
    "back\\slash",
    "a:b;c,d=e",
    "{x}[0].dims",
    "<b>&amp;",
    "%s {0} $1",
    "🙂",
]


def test_names_of_tensors_are_carried_as_the_graph_has_them(start: Start) -> None:
    sides = {
        side: [helper.make_tensor_value_info(f"{side}{name}", TensorProto.FLOAT, ["n", 1]) for name in NAMES]
        for side in ("<", ">")
    }
    nodes = [helper.make_node("Identity", [f"<{name}"], [f">{name}"]) for name in NAMES]
    file = made.graph_bytes(helper.make_graph(nodes, "names", sides["<"], sides[">"]))
    declared = {
        key: [{"name": f"{side}{name}", "data_type": "FP32", "dims": [1]} for name in NAMES]
        for key, side in (("inputs", "<"), ("outputs", ">"))
    }
    client, address = start(made.serving(**declared), {"artifact/model.onnx": file})
    sent = {f"<{name}": np.full((2, 1), at, np.float32) for at, name in enumerate(NAMES)}
    found = client.infer("echo", sent, timeout_s=30).outputs
    assert {name: found[f">{name}"].tolist() for name in NAMES} == {n: [[at], [at]] for at, n in enumerate(NAMES)}
    parcel = parcel_of("echo", [sent], protocol=HTTP, host="", port=0)
    head = str(parcel.json_bytes[0])
    answer = httpx.post(
        address, content=parcel.bodies[0], headers={"Inference-Header-Content-Length": head}, timeout=30
    )
    assert answer.status_code == 200 and f'">{json.dumps(NAMES[3])[1:-1]}"' in answer.text


@pytest.mark.parametrize("name", ["model.onnx_data", "model_data", "deep/onnx__MatMul_12", "weights.bin"])
def test_a_graph_reads_its_weights_from_beside_itself_whatever_they_are_called(start: Start, name: str) -> None:
    weights = np.arange(4, dtype=np.float32)
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    w.external_data.add(key="location", value=name)
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", 4]) for one in ("x", "y"))
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "beside", [x], [y], [w]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    files = {"artifact/model.onnx": model.SerializeToString(), f"artifact/{name}": weights.tobytes()}
    client, _ = start(made.serving(), files)
    answer = client.infer("echo", {"x": np.ones((2, 4), np.float32)}, timeout_s=30).outputs["y"]
    assert np.array_equal(answer, np.stack([1 + weights] * 2))
