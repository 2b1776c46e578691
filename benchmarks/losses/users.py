"""Users on a host of their own, who ask every gateway all the time, over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import http.client
import json
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass

import grpc
from tritonclient.grpc import service_pb2

#: Whoever has no answer by then counts it as lost; a gateway gives up after 10 s.
PATIENCE_S = 15.0
#: A user tries a gateway that was away again soon.
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True)
class Question:
    """What every user asks, over HTTP and gRPC, and the numbers that are the right answer; empty: any answer is."""

    model: str
    request: service_pb2.ModelInferRequest
    body: bytes = b"{}"
    right: tuple[float, ...] = ()
    pause_s: float = 0.02  # between an answer and the next request

    def is_answered_by_http(self, body: bytes) -> bool:
        return not self.right or tuple(json.loads(body)["outputs"][0]["data"]) == self.right

    def is_answered_by_grpc(self, answer: service_pb2.ModelInferResponse) -> bool:
        return not self.right or list(answer.raw_output_contents) == [_packed(self.right)]


def anything(model: str) -> Question:
    """Any answer is right."""
    return Question(model, service_pb2.ModelInferRequest(model_name=model))


def doubling(model: str) -> Question:
    """Four numbers, of which the model gives twice as much."""
    numbers = (1.0, 2.0, 3.0, 4.0)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": numbers}]}
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[_packed(numbers)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    return Question(model, request, json.dumps(body).encode(), tuple(2 * one for one in numbers), pause_s=0.08)


def _packed(numbers: tuple[float, ...]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


@dataclass(frozen=True)
class Call:
    began: float  # time.monotonic()
    ended: float
    gateway: str
    release: str
    by: str  # the replica that answered, over gRPC alone
    error: str  # empty: answered as asked


class Users:
    """`each` users for HTTP and as many for gRPC at every gateway, each on a connection of its own."""

    def __init__(self, gateways: dict[str, tuple[str, str]], question: Question, each: int = 2) -> None:
        """`gateways`: (host:port of HTTP, host:port of gRPC) by name."""
        self._stop, self._question = threading.Event(), question
        self.calls: list[Call] = []
        self._threads = [
            threading.Thread(target=ask, args=(name, address), daemon=True)
            for name, addresses in gateways.items()
            for ask, address in zip((self._http, self._grpc), addresses, strict=True)
            for _ in range(each)
        ]

    def start(self) -> None:
        for one in self._threads:
            one.start()

    def stop(self) -> None:
        self._stop.set()
        for one in self._threads:
            one.join(2 * PATIENCE_S)

    def since(self, began: float, gateway: str = "") -> list[Call]:
        return [one for one in list(self.calls) if one.began >= began and gateway in ("", one.gateway)]

    def lost(self, began: float, gateway: str = "") -> Counter[str]:
        return Counter(one.error for one in self.since(began, gateway) if one.error)

    def _note(self, began: float, gateway: str, release: str, by: str, error: str) -> None:
        self.calls.append(Call(began, time.monotonic(), gateway, release, by, error))
        self._stop.wait(self._question.pause_s)

    def _http(self, gateway: str, address: str) -> None:
        line = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        while not self._stop.is_set():
            began, release, error = time.monotonic(), "", ""
            try:
                line.request("POST", f"/v2/models/{self._question.model}/infer", self._question.body)
                answer = line.getresponse()
                body = answer.read()
                release = answer.getheader("x-sluicegate-release") or ""
                error = "" if answer.status == 200 else f"HTTP {answer.status}"
                if not error and not self._question.is_answered_by_http(body):
                    error = "wrong answer"
            except (OSError, http.client.HTTPException) as problem:
                error = type(problem).__name__
                line.close()
            self._note(began, gateway, release, "", error)
        line.close()

    def _grpc(self, gateway: str, address: str) -> None:
        with contextlib.closing(grpc.insecure_channel(address, options=_CHANNEL)) as channel:
            ask = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            while not self._stop.is_set():
                began, release, by, error = time.monotonic(), "", "", ""
                try:
                    answer, call = ask.with_call(self._question.request, timeout=PATIENCE_S)
                    release, by = dict(call.initial_metadata()).get("x-sluicegate-release", ""), answer.id
                    error = "" if self._question.is_answered_by_grpc(answer) else "wrong answer"
                except grpc.RpcError as problem:
                    error = problem.code().name
                self._note(began, gateway, str(release), by, error)
