"""Talks to one Triton server over gRPC: inference, metadata and statistics, and why a model did not load."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serving.ports import Inference, InferenceError, Tensors, TensorSpec

_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # servers are on our own network: ignore http_proxy
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # no connection state shared with a client of an earlier server
]
CONTROL_TIMEOUT_S = 5.0
#: Who sends this header with the server's secret may use its control APIs.
CONTROL_HEADER = "sluicegate-control"
_CONTROL_APIS = "model-repository,shared-memory,trace,logging"
_ABSOLUTE_PATH = re.compile(r"(?<![\w/.])/(?:[^\s/:'\"<>|]+/)+([^\s/:'\"<>|]*)")
_LONGEST_MESSAGE = 2000
#: gRPC status → reason. UNAVAILABLE is both "no connection" and Triton's own word for a full queue or an unloaded model.
_REASONS = {
    "DEADLINE_EXCEEDED": "timeout",
    "INVALID_ARGUMENT": "rejected",
    "NOT_FOUND": "rejected",
    "ALREADY_EXISTS": "rejected",
    "UNIMPLEMENTED": "rejected",
    "CANCELLED": "unreachable",
    "RESOURCE_EXHAUSTED": "full",
}
_OWN_UNAVAILABLE = {
    "Exceeds maximum queue size": "full",
    "Request timeout expired": "timeout",
    "is not at ready state": "rejected",
    "is restricted, expecting header": "rejected",
    "has no available versions": "rejected",
}


def without_paths(message: str) -> str:
    """The message with the names of files in the place of their paths."""
    return _ABSOLUTE_PATH.sub(r"\1", message)


def redacted(message: str) -> str:
    """The message without folders: a traceback keeps file names and lines, and reveals no path of the machine."""
    short = without_paths(message.strip())
    return short if len(short) <= _LONGEST_MESSAGE else f"{short[:_LONGEST_MESSAGE]} …"


def control_restrictions(secret: str) -> list[str]:
    """Arguments that close the server's control APIs to all who do not know the secret. Inference and metadata stay open.

    Source: the server's own words, Triton 2.51; its help says it with a comma before the key, which it does not read.
    """
    value = f"{_CONTROL_APIS}:{CONTROL_HEADER}={secret}"
    return [f"--http-restricted-api={value}", f"--grpc-restricted-protocol={value}"]


class TritonServer:
    """Implements `serving.ports.InferenceServer`. Safe to use from several threads."""

    def __init__(self, host: str, http_port: int, grpc_port: int) -> None:
        self.host, self.http_port, self.grpc_port = host, http_port, grpc_port
        self._client = triton_grpc.InferenceServerClient(f"{host}:{grpc_port}", channel_args=_CHANNEL)

    def close(self) -> None:
        self._client.close()

    def is_live(self) -> bool:
        try:
            return bool(self._client.is_server_live(client_timeout=1.0))
        except InferenceServerException:
            return False

    def metadata(self, model: str) -> tuple[list[TensorSpec], list[TensorSpec]]:
        try:
            found = self._client.get_model_metadata(model, client_timeout=CONTROL_TIMEOUT_S)
            config = self._client.get_model_config(model, client_timeout=CONTROL_TIMEOUT_S).config
        except InferenceServerException as error:
            raise _inference_error(error) from error
        skip = 1 if config.max_batch_size > 0 else 0
        return _specs(found.inputs, skip), _specs(found.outputs, skip)

    def infer(self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[str] = ()) -> Inference:
        tensors = [_tensor(name, value) for name, value in inputs.items()]
        wanted = [triton_grpc.InferRequestedOutput(name) for name in outputs] or None
        began = time.perf_counter()
        try:
            answer = self._client.infer(model, tensors, outputs=wanted, client_timeout=timeout_s)
        except InferenceServerException as error:
            raise _inference_error(error) from error
        latency_s = time.perf_counter() - began
        found = {output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs}
        return Inference({name: value for name, value in found.items() if value is not None}, latency_s)

    def why_not_loaded(self, model: str, *, control_secret: str) -> str:
        """The server's own words on a model that it could not load; empty if it loaded it. Raises InferenceError.

        Args:
            control_secret: what `control_restrictions` were made with.
        """
        headers = {f"triton-grpc-protocol-{CONTROL_HEADER}": control_secret}
        try:
            index = self._client.get_model_repository_index(headers=headers, client_timeout=CONTROL_TIMEOUT_S)
        except InferenceServerException as error:
            raise _inference_error(error) from error
        found = [entry for entry in index.models if entry.name == model]
        if any(entry.state == "READY" for entry in found):
            return ""
        return redacted(found[0].reason if found else "") or f"the server knows no {model}"

    def statistics(self, model: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._client.get_inference_statistics(
                model, as_json=True, client_timeout=CONTROL_TIMEOUT_S
            )
        except InferenceServerException as error:
            raise _inference_error(error) from error
        return found


def _tensor(name: str, value: npt.NDArray[Any]) -> triton_grpc.InferInput:
    array = value.astype(np.object_) if value.dtype.kind in "US" else value
    data_type = np_to_triton_dtype(array.dtype)
    if data_type is None:
        raise InferenceError(
            "rejected", f"The input {name!r} has the type {value.dtype}, which no tensor of the protocol has."
        )
    tensor = triton_grpc.InferInput(name, list(array.shape), data_type)
    tensor.set_data_from_numpy(array)
    return tensor


def _specs(tensors: Any, skip: int) -> list[TensorSpec]:
    return [TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape)[skip:]) for tensor in tensors]


def _status(error: InferenceServerException) -> str:
    return str(error.status() or "").removeprefix("StatusCode.")


def _inference_error(error: InferenceServerException) -> InferenceError:
    status, message = _status(error), str(error.message() or error)
    if status == "UNAVAILABLE":
        reason = next((reason for words, reason in _OWN_UNAVAILABLE.items() if words in message), "unreachable")
    else:
        reason = _REASONS.get(status, "server_error")
    return InferenceError(reason, redacted(message))
