"""Asks a Triton server over gRPC streams, one for each request: a model that streams (Triton: decoupled) answers in no other way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import grpc
import numpy as np
from tritonclient import grpc as triton_grpc
from tritonclient.grpc import service_pb2

from serving.ports import Inference, InferenceError, Tensors
from serving.servers.adapters.triton_requests import CHANNEL, responses, stream_call, tensors_of

_REFUSAL = "decoupled transaction policy"


def is_refused_as_decoupled(message: str) -> bool:
    """Whether the server's own words say that the model answers over streams alone."""
    return _REFUSAL in message


class Streams:
    """A connection of its own, made for the first request. Safe to use from several threads."""

    def __init__(self, address: str) -> None:
        self._address, self._making = address, threading.Lock()
        self._channel: grpc.Channel | None = None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def infer(self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[str] = ()) -> Inference:
        """All pieces of each text, one after the other. Raises InferenceError, also where no response came."""
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, data_type, shape, data in tensors_of(inputs):
            request.inputs.add(name=name, datatype=data_type, shape=shape)
            request.raw_input_contents.append(data)
        for name in outputs:
            request.outputs.add(name=name)
        began = time.perf_counter()
        found = list(self._pieces(request.SerializeToString(), timeout_s))
        latency_s = time.perf_counter() - began
        if not found:
            raise InferenceError("server_error", f"{model} ended its stream without a response.")
        return Inference(joined(found), latency_s)

    def _pieces(self, body: bytes, timeout_s: float) -> Iterator[Tensors]:
        with self._making:
            if self._channel is None:
                self._channel = grpc.insecure_channel(self._address, options=CHANNEL)
        for data in responses(stream_call(self._channel), body, timeout_s=timeout_s):
            response = service_pb2.ModelStreamInferResponse.FromString(data).infer_response
            answer = triton_grpc.InferResult(response)
            yield {output.name: answer.as_numpy(output.name) for output in response.outputs}


def joined(pieces: Sequence[Tensors]) -> dict[str, np.ndarray]:
    """Each text's pieces in their order, as one. Outputs that are no text, which no release may declare, keep their last."""
    whole = {name: value for name, value in pieces[0].items() if value is not None}
    for piece in pieces[1:]:
        for name, value in piece.items():
            is_text = name in whole and value.dtype == object and whole[name].shape == value.shape
            whole[name] = whole[name] + value if is_text else value
    return whole
