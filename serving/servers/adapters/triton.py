"""Talks to one inference server over gRPC: inference, metadata and statistics, and why a model did not load.

Triton is what it is written for. Of another server of the Open Inference Protocol it takes what the protocol itself has; what only
Triton's extensions tell is `not_offered` there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from registry.core.kinds.triton import CONTROL_HEADER
from serving.ports import GRPC, HTTP, Inference, InferenceError, PreparedRequests, Tensors, TensorSpec
from serving.servers.adapters.triton_errors import grpc_error
from serving.servers.adapters.triton_requests import CHANNEL, opened, parcel_of, typed
from serving.servers.adapters.triton_streams import Streams, is_refused_as_decoupled
from serving.servers.core.redaction import redacted

CONTROL_TIMEOUT_S = 5.0
_BINARY_TENSORS = "binary_tensor_data"


class TritonServer:
    """Implements `serving.ports.InferenceServer`. Safe to use from several threads."""

    def __init__(self, host: str, http_port: int, grpc_port: int) -> None:
        self.host, self.http_port, self.grpc_port = host, http_port, grpc_port
        self._client = triton_grpc.InferenceServerClient(f"{host}:{grpc_port}", channel_args=CHANNEL)
        self._prepared: list[PreparedRequests] = []
        self._streams = Streams(f"{host}:{grpc_port}")
        self._decoupled: set[str] = set()  # models that refused to be asked for one response

    def close(self) -> None:
        for requests in self._prepared:
            requests.close()
        self._streams.close()
        self._client.close()

    def is_live(self, *, timeout_s: float = 1.0) -> bool:
        try:
            return bool(self._client.is_server_live(client_timeout=timeout_s))
        except InferenceServerException:
            return False

    def metadata(self, model: str) -> tuple[list[TensorSpec], list[TensorSpec]]:
        try:
            found = self._client.get_model_metadata(model, client_timeout=CONTROL_TIMEOUT_S)
        except InferenceServerException as error:
            raise _inference_error(error) from error
        batches = self._batches(model)
        return _specs(found.inputs, batches), _specs(found.outputs, batches)

    def _batches(self, model: str) -> bool | None:
        """Whether the model has a batch axis; None where the server does not offer its configuration."""
        try:
            config = self._client.get_model_config(model, client_timeout=CONTROL_TIMEOUT_S).config
        except InferenceServerException as error:
            if _is_not_offered(error):
                return None
            raise _inference_error(error) from error
        return bool(config.max_batch_size > 0)

    def infer(self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[str] = ()) -> Inference:
        if model in self._decoupled:
            return self._streams.infer(model, inputs, timeout_s=timeout_s, outputs=outputs)
        tensors = [_tensor(name, value) for name, value in inputs.items()]
        wanted = [triton_grpc.InferRequestedOutput(name) for name in outputs] or None
        began = time.perf_counter()
        try:
            answer = self._client.infer(model, tensors, outputs=wanted, client_timeout=timeout_s)
        except InferenceServerException as error:
            if is_refused_as_decoupled(str(error.message())):
                self._decoupled.add(model)
                return self._streams.infer(model, inputs, timeout_s=timeout_s, outputs=outputs)
            raise _inference_error(error) from error
        latency_s = time.perf_counter() - began
        found = {output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs}
        return Inference({name: value for name, value in found.items() if value is not None}, latency_s)

    def prepared(
        self, model: str, batches: Sequence[Tensors], *, protocol: str = GRPC, streams: bool = False
    ) -> PreparedRequests:
        """They end with this client."""
        port = self.http_port if protocol == HTTP else self.grpc_port
        is_json = protocol == HTTP and not self._takes_binary()
        parcel = parcel_of(model, batches, protocol=protocol, host=self.host, port=port, is_json=is_json)
        self._prepared.append(opened(replace(parcel, streams=streams)))
        return self._prepared[-1]

    def _takes_binary(self) -> bool:
        """Whether tensors may follow the JSON as bytes, over HTTP. Of a server that does not answer now: as Triton's do."""
        try:
            return _BINARY_TENSORS in self._client.get_server_metadata(client_timeout=CONTROL_TIMEOUT_S).extensions
        except InferenceServerException:
            return True

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
            if _is_not_offered(error):
                raise InferenceError("not_offered", "The server keeps no statistics.") from error
            raise _inference_error(error) from error
        return found


def _tensor(name: str, value: npt.NDArray[Any]) -> triton_grpc.InferInput:
    array, data_type = typed(name, value)
    tensor = triton_grpc.InferInput(name, list(array.shape), data_type)
    tensor.set_data_from_numpy(array)
    return tensor


def _specs(tensors: Any, batches: bool | None) -> list[TensorSpec]:
    skip = 1 if batches else 0
    return [TensorSpec(one.name, one.datatype, tuple(one.shape)[skip:], is_whole=batches is None) for one in tensors]


def _is_not_offered(error: InferenceServerException) -> bool:
    return str(error.status() or "").endswith("UNIMPLEMENTED")


def _inference_error(error: InferenceServerException) -> InferenceError:
    status = str(error.status() or "").removeprefix("StatusCode.")
    return grpc_error(status, str(error.message() or error))
