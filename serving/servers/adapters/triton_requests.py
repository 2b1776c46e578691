"""Requests to one Triton server that are made beforehand: bytes that are sent again and again, over gRPC or over HTTP.

No request is made while a load runs, and no answer is read into arrays: that would be work of the generator's own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from ledger.adapters.deadline_http import DeadlineConnection, TooLong
from serving.ports import HTTP, InferenceError, Parcel, PreparedRequests, Tensors
from serving.servers.adapters.triton_errors import grpc_error, http_error, stream_error

#: Of one answer, and of one stream's responses together: the agent, the prober and the gates hold it in memory.
MOST_ANSWER_BYTES = 256 << 20
CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MOST_ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),  # servers are on our own network: ignore http_proxy
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # no connection state shared with a client of an earlier server
]
_SERVICE = "/inference.GRPCInferenceService"
_CONNECT_S = 1.0
_ERROR_FIELD = b"\x0a"


def parcel_of(
    model: str, batches: Sequence[Tensors], *, protocol: str, host: str, port: int, is_json: bool = False
) -> Parcel:
    """The requests as bytes of that protocol, for the server that listens there.

    Args:
        is_json: over HTTP, for a server that takes tensors as numbers and texts of the JSON alone.

    Raises InferenceError as `typed` does, and for what JSON cannot say.
    """
    make = _grpc_body if protocol != HTTP else _json_body if is_json else _http_body
    made = [make(model, batch) for batch in batches]
    return Parcel(protocol, host, port, model, tuple(body for body, _ in made), tuple(head for _, head in made))


def opened(parcel: Parcel) -> PreparedRequests:
    """What sends them. The caller closes it."""
    return HttpRequests(parcel) if parcel.protocol == HTTP else GrpcRequests(parcel)


class GrpcRequests:
    """Implements `serving.ports.PreparedRequests`: one connection for all, as gRPC does."""

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel
        self._channel = grpc.insecure_channel(f"{parcel.host}:{parcel.port}", options=CHANNEL)
        # bytes in, bytes out: without serializers gRPC hands them on as they are
        self._infer = self._channel.unary_unary(f"{_SERVICE}/ModelInfer")
        self._stream = stream_call(self._channel)
        self._is_live = self._channel.unary_unary(f"{_SERVICE}/ServerLive")

    def connect(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            self._is_live(b"", timeout=_CONNECT_S)

    def send(self, at: int, *, timeout_s: float) -> Sequence[float] | None:
        body = self.parcel.bodies[at % len(self.parcel.bodies)]
        if self.parcel.streams:
            came = [time.perf_counter() for _ in responses(self._stream, body, timeout_s=timeout_s)]
            if not came:
                raise InferenceError("server_error", "The stream ended without a response.")
            return came
        try:
            self._infer(body, timeout=timeout_s)
        except grpc.RpcError as error:
            raise grpc_error(error.code().name, error.details() or "") from error
        return None

    def close(self) -> None:
        self._channel.close()


def stream_call(channel: grpc.Channel) -> Callable[..., Iterator[bytes]]:
    """A stream for one request: the client's half of it ends with that, so the server's ends with its last response."""
    call: Callable[..., Iterator[bytes]] = channel.unary_stream(f"{_SERVICE}/ModelStreamInfer")
    return call


def responses(call: Callable[..., Iterator[bytes]], body: bytes, *, timeout_s: float) -> Iterator[bytes]:
    """Each response of one stream, as it comes. Raises InferenceError.

    An error within a stream is a response under a status of success: its first field, which nothing precedes. The header
    `triton_grpc_error` would ask for a status, and Triton 2.51 ends by a signal where the model's own error follows it.
    """
    room = MOST_ANSWER_BYTES
    try:
        for data in call(body, timeout=timeout_s):
            room -= len(data)
            if room < 0:
                raise InferenceError("server_error", f"The stream has more than {MOST_ANSWER_BYTES} bytes.")
            if data.startswith(_ERROR_FIELD):
                raise stream_error(service_pb2.ModelStreamInferResponse.FromString(data).error_message)
            yield data
    except grpc.RpcError as error:
        raise grpc_error(error.code().name, error.details() or "") from error


class HttpRequests:
    """Implements `serving.ports.PreparedRequests`: kept-alive connections, as many as there are requests at once.

    Tensors go as bytes behind the JSON, not as its numbers, wherever the server takes them so.
    Source: Open Inference Protocol v2, binary tensor data extension, which Triton's own clients use unless told otherwise.
    """

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel
        self._path = parcel.path or f"/v2/models/{parcel.model}/infer"
        self._idle: deque[DeadlineConnection] = deque()  # its append and pop are atomic

    def connect(self) -> None:
        with contextlib.suppress(InferenceError):
            self.ask("GET", "/v2/health/live", b"", {}, timeout_s=_CONNECT_S)

    def send(self, at: int, *, timeout_s: float) -> None:
        at %= len(self.parcel.bodies)
        headers = {"Content-Type": "application/json"}
        if head := self.parcel.json_bytes[at]:
            headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(head)}
        status, answer = self.ask("POST", self._path, self.parcel.bodies[at], headers, timeout_s=timeout_s)
        if status != http.client.OK:
            raise http_error(status, answer)

    def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str], *, timeout_s: float
    ) -> tuple[int, bytes]:
        deadline = time.monotonic() + timeout_s
        try:
            line = self._idle.pop()  # the one that was used last
        except IndexError:
            url = f"http://{self.parcel.host}:{self.parcel.port}"
            line = DeadlineConnection(url, deadline, MOST_ANSWER_BYTES, addresses=lambda host, _: [host])
        line.deadline = deadline
        try:
            if not line.is_quiet():  # a server may end a connection after any answer
                line.close()
            status, answer = line.ask(method, path, body, headers)
            if status == http.client.INTERNAL_SERVER_ERROR:
                # uvicorn ends it behind an exception and does not say so: the next request would meet that end. It goes onto a
                # connection of its own, for none is ever sent twice: one that met no answer may have been read and dropped.
                line.close()
            return status, answer
        except TooLong as error:
            raise InferenceError("server_error", f"The answer has {error}.") from error
        except TimeoutError as error:
            raise InferenceError("timeout", f"No answer within {timeout_s:g} s.") from error
        except (OSError, http.client.HTTPException) as error:
            raise InferenceError("unreachable", f"no answer: {type(error).__name__}") from error
        finally:
            self._idle.append(line)  # closed after an error, and then it connects anew

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def typed(name: str, value: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], str]:
    """The array as the protocol has it, and its type's name there. Raises InferenceError: `rejected` for one that it has not."""
    array = value.astype(np.object_) if value.dtype.kind in "US" else value
    data_type = np_to_triton_dtype(array.dtype)
    if data_type is None:
        raise InferenceError(
            "rejected", f"The input {name!r} has the type {value.dtype}, which no tensor of the protocol has."
        )
    return array, data_type


def _grpc_body(model: str, batch: Tensors) -> tuple[bytes, int]:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, data_type, shape, data in tensors_of(batch):
        request.inputs.add(name=name, datatype=data_type, shape=shape)
        request.raw_input_contents.append(data)
    return request.SerializeToString(), 0


def _http_body(_: str, batch: Tensors) -> tuple[bytes, int]:
    tensors = list(tensors_of(batch))
    inputs = [
        {"name": name, "datatype": data_type, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, data_type, shape, data in tensors
    ]
    said = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return said + b"".join(data for *_, data in tensors), len(said)


def _json_body(_: str, batch: Tensors) -> tuple[bytes, int]:
    inputs = []
    for name, value in batch.items():
        array, data_type = typed(name, value)
        data = array.ravel().tolist()
        try:
            if data_type == "BYTES":
                data = [text.decode() if isinstance(text, bytes) else text for text in data]
            said = json.dumps(
                {"name": name, "datatype": data_type, "shape": list(array.shape), "data": data}, allow_nan=False
            )
        except ValueError as error:
            raise InferenceError(
                "rejected",
                f"The input {name!r} is not to be said in JSON ({error}), and the server takes nothing else.",
            ) from error
        inputs.append(said)
    return f'{{"inputs": [{", ".join(inputs)}]}}'.encode(), 0


def tensors_of(batch: Tensors) -> list[tuple[str, str, list[int], bytes]]:
    """(name, type, shape, bytes) of each."""
    found = []
    for name, value in batch.items():
        array, data_type = typed(name, value)
        if data_type == "BYTES":
            text = serialize_byte_tensor(array)
            data = text.item() if text.size else b""
        else:
            data = array.tobytes()
        found.append((name, data_type, list(array.shape), data))
    return found
