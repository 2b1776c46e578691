"""Values of all 13 data types through a real gateway and a real Triton, over JSON, HTTP's binary form and gRPC: bit for bit."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.support.rigs.echo_rig import BATCH, MODEL, TYPES, echo, stable
from tests.support.rigs.gateway_rig import Rig

pytestmark = [pytest.mark.real("triton", "envoy", "onnx"), pytest.mark.timeout(300)]
Arrays = dict[str, np.ndarray[Any, Any]]

_INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
_FLOATS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
TEXTS = ["plain", "", "日本語", "he\0llo", "b'x'", 'a "quoted" \\ text', "line\r\nend", "🙂 e\u0301", " ", "x" * 5000]


def texts(values: list[str]) -> np.ndarray[Any, Any]:
    return np.array([one.encode() for one in values], object)


def edges() -> Arrays:
    """The edges of each type, as one item."""
    found: Arrays = {"BOOL": np.array([True, False]), "BYTES": texts(TEXTS)}
    for name in _INTEGERS:
        info = np.iinfo(name.lower())
        inner = [2**53 + 1, 2**63 - 1] if info.bits == 64 else []
        found[name] = np.array([info.min, info.max, 0, 1, info.max - 1, info.min + 1, *inner], name.lower())
    for name, kind in _FLOATS.items():
        about = np.finfo(kind)
        found[name] = np.array(
            [about.min, about.max, about.tiny, about.smallest_subnormal, about.eps, -0.0, 0.1, 1 / 3], kind
        )
    return found


def as_items(found: Arrays, *, times: int = 1) -> Arrays:
    """So many items, each rolled by one more, so that no two are alike."""
    return {name: np.stack([np.roll(one, at) for at in range(times)]) for name, one in found.items()}


def not_finite() -> Arrays:
    plain = edges()
    return plain | {name: np.array([np.nan, np.inf, -np.inf], kind) for name, kind in _FLOATS.items()}


CASES: dict[str, Callable[[], Arrays]] = {
    "edges": lambda: as_items(edges()),
    "largest batch": lambda: as_items({**edges(), "BYTES": texts(TEXTS[:-1])}, times=BATCH),
    "no values": lambda: {name: array[:, :0] for name, array in as_items(edges()).items()},
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with echo(tmp_path_factory.mktemp("values")) as (built, server):
        built.apply(None, model=MODEL, stable=stable(server))
        yield built


def _plain(array: np.ndarray[Any, Any]) -> Any:
    return [[one.decode() for one in row] for row in array] if array.dtype == object else array.tolist()


def _packed(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype != object:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(one)) + one for one in array.ravel())


def _unpacked(raw: bytes, like: np.ndarray[Any, Any], shape: list[int]) -> np.ndarray[Any, Any]:
    if like.dtype != object:
        return np.frombuffer(raw, like.dtype).reshape(shape)
    found, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return np.array([*found, None], object)[:-1].reshape(shape)


def over_http(gateway: Rig, sent: Arrays, binary: set[str]) -> Arrays:
    """`binary`: the types that go, and come, in the protocol's binary form."""
    inputs: list[dict[str, Any]] = []
    tail = b""
    for name, array in sent.items():
        one: dict[str, Any] = {"name": f"{name}_in", "datatype": name, "shape": list(array.shape)}
        if name in binary:
            packed = _packed(array)
            tail += packed
            one["parameters"] = {"binary_data_size": len(packed)}
        else:
            one["data"] = _plain(array)
        inputs.append(one)
    outputs = [{"name": f"{name}_out", "parameters": {"binary_data": name in binary}} for name in sent]
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    answer = httpx.post(
        f"http://127.0.0.1:{gateway.envoy.port}/v2/models/{MODEL}/infer",
        content=head + tail,
        headers={"Inference-Header-Content-Length": str(len(head))},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    size = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    found, at = {}, size
    for output in json.loads(answer.content[:size])["outputs"]:
        name = output["name"].removesuffix("_out")
        assert output["datatype"] == name
        if name in binary:
            until = at + output["parameters"]["binary_data_size"]
            found[name] = _unpacked(answer.content[at:until], sent[name], output["shape"])
            at = until
        else:
            values = [one.encode() for one in output["data"]] if name == "BYTES" else output["data"]
            found[name] = np.array([*values, None], object)[:-1].astype(sent[name].dtype).reshape(output["shape"])
    return found


def over_grpc(gateway: Rig, sent: Arrays) -> Arrays:
    inputs = []
    for name, array in sent.items():
        assert name == np_to_triton_dtype(array.dtype)
        inputs.append(client.InferInput(f"{name}_in", array.shape, name))
        inputs[-1].set_data_from_numpy(array)
    with client.InferenceServerClient(f"127.0.0.1:{gateway.envoy.port}") as asked:
        answer = asked.infer(MODEL, inputs, client_timeout=60)
        return {name: answer.as_numpy(f"{name}_out") for name in sent}


def over_json(gateway: Rig, sent: Arrays) -> Arrays:
    """FP16 has no form in JSON, so it goes in binary behind it."""
    return over_http(gateway, sent, {"FP16"})


def over_binary(gateway: Rig, sent: Arrays) -> Arrays:
    return over_http(gateway, sent, set(sent))


def bits(array: np.ndarray[Any, Any]) -> Any:
    return (array.shape, array.tolist() if array.dtype == object else (array.dtype, array.tobytes()))


PROTOCOLS = [over_json, over_binary, over_grpc]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ask", PROTOCOLS)
def test_values_come_back_as_they_were_sent(gateway: Rig, ask: Callable[[Rig, Arrays], Arrays], case: str) -> None:
    sent = CASES[case]()
    assert sent.keys() == TYPES.keys()
    found = ask(gateway, sent)
    assert [name for name in sent if bits(found[name]) != bits(sent[name])] == []


@pytest.mark.parametrize("ask", PROTOCOLS)
def test_what_is_not_finite_comes_back_in_its_bits(gateway: Rig, ask: Callable[[Rig, Arrays], Arrays]) -> None:
    sent = as_items(not_finite())
    found = ask(gateway, sent)
    assert [name for name in sent if bits(found[name]) != bits(sent[name])] == []


@pytest.mark.parametrize("ask", [over_binary, over_grpc])
def test_bytes_that_are_no_text_are_their_senders_mistake(gateway: Rig, ask: Callable[[Rig, Arrays], Arrays]) -> None:
    """ONNX Runtime's texts are UTF-8."""
    sent = as_items(edges()) | {"BYTES": np.array([[b"\xff\xfe"]], object)}
    with pytest.raises((AssertionError, InferenceServerException), match="'BYTES_in' is not UTF-8"):
        ask(gateway, sent)
