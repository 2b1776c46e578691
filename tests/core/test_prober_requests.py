"""Mirrored requests become the arrays that the user sent, or are left out for a reason."""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient import grpc as triton_grpc
from tritonclient.grpc import service_pb2
from tritonclient.grpc._utils import _get_inference_request
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from rollouts.prober.requests import GRPC_PATH, MAX_BODY_BYTES, Question, Unusable, read_request

PATH = "/v2/models/double/infer"
ARRAYS = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "f16": np.array([[0.5, -2]], dtype=np.float16),
    "f64": np.array([1e-300]),
    "i8": np.array([-128, 127], dtype=np.int8),
    "u16": np.array([65535], dtype=np.uint16),
    "i64": np.array([2**62]),
    "u64": np.array([2**63 + 1], dtype=np.uint64),
    "bool": np.array([True, False]),
    "text": np.array([["füße".encode()], [b""]], dtype=object),
}


def same(found: Question, arrays: dict[str, Any] = ARRAYS) -> bool:
    return found.inputs.keys() == arrays.keys() and all(
        found.inputs[name].dtype == array.dtype
        and found.inputs[name].shape == array.shape
        and found.inputs[name].tolist() == array.tolist()
        for name, array in arrays.items()
    )


def http_request(*, binary: bool, names: Any = ARRAYS, **more: Any) -> tuple[dict[str, str], bytes]:
    """The JSON part with the tensors, or with their sizes and the tensors after it."""
    inputs, raws = [], []
    for name in names:
        array = ARRAYS[name]
        inputs.append({"name": name, "shape": list(array.shape), "datatype": np_to_triton_dtype(array.dtype)})
        if binary:
            raws.append(serialize_byte_tensor(array).item() if array.dtype.kind == "O" else array.tobytes())
            inputs[-1]["parameters"] = {"binary_data_size": len(raws[-1])}
        else:
            flat = array.ravel().tolist()
            inputs[-1]["data"] = [value.decode() if isinstance(value, bytes) else value for value in flat]
    head = json.dumps({"inputs": inputs, **more}).encode()
    headers = {"inference-header-content-length": str(len(head))} if binary else {}
    return headers, head + b"".join(raws)


def grpc_request(**more: Any) -> service_pb2.ModelInferRequest:
    """As tritonclient writes it."""
    inputs = []
    for name, array in ARRAYS.items():
        one = triton_grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        one.set_data_from_numpy(array)
        inputs.append(one)
    settled = {
        "model_name": "double", "model_version": "", "request_id": "", "outputs": None, "sequence_id": 0, "sequence_start": False,
        "sequence_end": False, "priority": 0, "timeout": None, "parameters": None,
    }  # fmt: skip
    return _get_inference_request(inputs=inputs, **{**settled, **more})


def framed(message: bytes, *, is_compressed: bool = False) -> bytes:
    return struct.pack(">BI", is_compressed, len(message)) + message


def refusal(path: str, headers: dict[str, str], body: bytes) -> str:
    with pytest.raises(Unusable) as caught:
        read_request(path, headers, body)
    return caught.value.reason


@pytest.mark.parametrize("path", [PATH, "/v2/models/double/versions/1/infer"])
def test_binary_tensors_over_http(path: str) -> None:
    assert same(read_request(path, *http_request(binary=True)))


def test_tensors_as_json() -> None:
    names = [name for name in ARRAYS if name != "f16"]  # the protocol has no FP16 in JSON
    found = read_request(PATH, *http_request(binary=False, names=names))
    assert same(found, {name: ARRAYS[name] for name in names})


def test_nested_lists_and_mixed_tensors() -> None:
    headers, body = http_request(binary=True, names=["u16"])
    document = json.loads(body[: int(headers["inference-header-content-length"])])
    document["inputs"].append({"name": "f32", "datatype": "FP32", "shape": [2, 3], "data": [[0, 1, 2], [3, 4, 5]]})
    head = json.dumps(document).encode()
    found = read_request(PATH, {"inference-header-content-length": str(len(head))}, head + ARRAYS["u16"].tobytes())
    assert same(found, {name: ARRAYS[name] for name in ("u16", "f32")})


def test_raw_and_typed_contents_over_grpc() -> None:
    assert same(read_request(GRPC_PATH, {}, framed(grpc_request().SerializeToString())))
    request = service_pb2.ModelInferRequest()
    fields = {
        "f32": "fp32",
        "f64": "fp64",
        "i8": "int",
        "u16": "uint",
        "i64": "int64",
        "u64": "uint64",
        "bool": "bool",
        "text": "bytes",
    }
    for name, field in fields.items():
        array = ARRAYS[name]
        one = request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        getattr(one.contents, f"{field}_contents").extend(array.ravel().tolist())
    found = read_request(GRPC_PATH, {}, framed(request.SerializeToString()))
    assert same(found, {name: ARRAYS[name] for name in fields})


def test_wanted_outputs_are_kept() -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    assert read_request(PATH, *http_request(binary=True, outputs=outputs)).outputs == ("y",)
    wanted = [triton_grpc.InferRequestedOutput("y")]
    assert read_request(GRPC_PATH, {}, framed(grpc_request(outputs=wanted).SerializeToString())).outputs == ("y",)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_requests(encoding: str) -> None:
    squeeze = gzip.compress if encoding == "gzip" else zlib.compress
    headers, body = http_request(binary=True)
    assert same(read_request(PATH, {**headers, "content-encoding": encoding}, squeeze(body)))
    message = framed(squeeze(grpc_request().SerializeToString()), is_compressed=True)
    assert same(read_request(GRPC_PATH, {"grpc-encoding": encoding}, message))


def test_what_grows_beyond_all_bounds_is_left_out() -> None:
    bomb = gzip.compress(b" " * (MAX_BODY_BYTES + 1))
    assert refusal(PATH, {"content-encoding": "gzip"}, bomb) == "too_large"


@pytest.mark.parametrize("sequence_id", [7, "seven"])
def test_sequences_are_left_out(sequence_id: int | str) -> None:
    asked = {"sequence_id": sequence_id, "sequence_start": True, "sequence_end": False}
    assert refusal(PATH, *http_request(binary=True, parameters=asked)) == "sequence"
    assert refusal(GRPC_PATH, {}, framed(grpc_request(**asked).SerializeToString())) == "sequence"


def test_shared_memory_is_left_out() -> None:
    one = triton_grpc.InferInput("x", [1], "FP32")
    one.set_shared_memory("region", 4)
    request = service_pb2.ModelInferRequest(model_name="double")
    request.inputs.extend([one._get_tensor()])
    assert refusal(GRPC_PATH, {}, framed(request.SerializeToString())) == "shared_memory"
    document = {
        "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "parameters": {"shared_memory_region": "r"}}]
    }
    assert refusal(PATH, {}, json.dumps(document).encode()) == "shared_memory"


@pytest.mark.parametrize(
    ("path", "headers", "body", "reason"),
    [
        ("/v2/models/double", {}, b"", "no_inference"),
        ("/v2/models/double/generate", {}, b"{}", "no_inference"),
        ("/inference.GRPCInferenceService/ModelMetadata", {}, framed(b""), "no_inference"),
        (PATH, {}, b"", "malformed"),
        (PATH, {}, b"[]", "malformed"),
        (PATH, {}, b'{"inputs": 1}', "malformed"),
        (PATH, {}, b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2]}]}', "malformed"),
        (PATH, {}, b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [1000000000000]}]}', "malformed"),
        (PATH, {}, b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1], "data": [1]}]}', "malformed"),
        (PATH, {}, b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [999]}]}', "malformed"),
        (PATH, {}, b'{"inputs": [{"name": "x", "datatype": "BF16", "shape": [1], "data": [1]}]}', "unsupported"),
        (PATH, {"inference-header-content-length": "99"}, b"{}", "malformed"),
        (PATH, {"content-encoding": "br"}, b"{}", "unsupported"),
        (PATH, {"content-encoding": "gzip"}, b"{}", "malformed"),
        (GRPC_PATH, {}, b"", "malformed"),
        (GRPC_PATH, {}, framed(b"\xff\xff"), "malformed"),
        (GRPC_PATH, {}, framed(b"") + b"more", "malformed"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_left_out(path: str, headers: dict[str, str], body: bytes, reason: str) -> None:
    assert refusal(path, headers, body) == reason


@given(path=st.sampled_from([PATH, GRPC_PATH]), body=st.binary(max_size=200))
def test_no_bytes_at_all_break_it(path: str, body: bytes) -> None:
    with contextlib.suppress(Unusable):
        assert read_request(path, {}, body).digest


def test_the_digest_tells_inputs_apart_and_holds_none() -> None:
    def digest(**arrays: Any) -> str:
        return Question(arrays).digest

    x = np.array([1, 2], dtype=np.float32)
    assert digest(x=x) == digest(x=x.copy())
    text, other = np.array([b"ab", b"c"], object), np.array([b"a", b"bc"], object)
    different = [
        digest(x=x),
        digest(y=x),
        digest(x=x.reshape(2, 1)),
        digest(x=x.view(np.int32)),
        digest(x=text),
        digest(x=other),
    ]
    assert len(set(different)) == len(different)
    assert len(different[0]) == 71
