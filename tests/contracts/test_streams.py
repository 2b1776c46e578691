"""A release that streams, on the fake in this process and on a real Triton, and what streams may bring that no Triton was seen to."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.ports import InferenceError, InferenceServer
from serving.servers.adapters.triton import TritonServer
from serving.servers.adapters.triton_streams import joined
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from tests.support.rigs.triton_rig import local_launcher
from validators.execution.runners.generators import Generators
from validators.execution.runners.load import drive

MODEL = "streaming"
TRITON = pytest.param(
    "triton", marks=[pytest.mark.real("triton"), pytest.mark.shows("backend:triton/python", "backend:triton/decoupled")]
)


def texts(*said: bytes) -> dict[str, Any]:
    return {"text": np.array([[one] for one in said], object)}


def _compute(arrays: dict[str, Any]) -> dict[str, Any]:
    """What the real one answers: to each the first text, by the word."""
    words = arrays["text"][0, 0].decode().split()
    if "boom" in words:
        raise ValueError("the answer went wrong")
    return {"y": np.full(arrays["text"].shape, b"".join(f"{word} ".encode() for word in words), object)}


@pytest.fixture(scope="module", params=["fake", TRITON])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    blobs = MemoryBlobs()
    manifest = made.streaming(blobs)
    if kind == "fake":
        yield FakeInferenceServer({MODEL: FakeModel(manifest["serving"], _compute)})
        return
    with local_launcher(tmp_path_factory.mktemp("node"), blobs) as launcher:
        running = launcher.start(launch_spec(manifest, launcher.folder_for(1, MODEL, "r1")))
        launcher.await_loaded(running, MODEL, timeout_s=60)
        with contextlib.closing(TritonServer(running.host, running.http_port, running.grpc_port)) as client:
            yield client


@pytest.mark.parametrize("said", [(b"good film",), (b"good film", b"bad")])
def test_an_answer_that_is_streamed_is_whole(server: InferenceServer, said: tuple[bytes, ...]) -> None:
    found = server.infer(MODEL, texts(*said), timeout_s=30, outputs=["y"])
    assert found.outputs["y"].tolist() == [[b"good film "]] * len(said) and found.latency_s > 0


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (texts(b"good boom"), "server_error"),
        ({"x": np.ones((1, 1), np.float32)}, "rejected"),
        ({"text": np.ones((1, 1), np.float32)}, "rejected"),
        (texts(*[b"good"] * 9), "rejected"),
        ({"text": np.array([[b"good", b"bad"]], object)}, "rejected"),
        ({}, "rejected"),
    ],
)
def test_an_error_within_a_stream_is_told_as_any_other(
    server: InferenceServer, inputs: dict[str, Any], reason: str
) -> None:
    requests = server.prepared(MODEL, [inputs], streams=True)
    for ask in (lambda: server.infer(MODEL, inputs, timeout_s=30), lambda: requests.send(0, timeout_s=30)):
        with pytest.raises(InferenceError) as caught:
            ask()
        assert caught.value.reason == reason, caught.value.message
    assert server.infer(MODEL, texts(b"bad"), timeout_s=30).outputs["y"].tolist() == [[b"bad "]]


def test_an_unknown_output_is_rejected(server: InferenceServer) -> None:
    server.infer(MODEL, texts(b"good"), timeout_s=30)
    with pytest.raises(InferenceError) as caught:
        server.infer(MODEL, texts(b"good"), timeout_s=30, outputs=["x"])
    assert caught.value.reason == "rejected", caught.value.message


def test_an_unknown_model_is_rejected(server: InferenceServer) -> None:
    with pytest.raises(InferenceError) as caught:
        server.prepared("nobody", [texts(b"good")], streams=True).send(0, timeout_s=30)
    assert caught.value.reason == "rejected"


def test_each_response_has_its_instant(server: InferenceServer, kind: str) -> None:
    requests = server.prepared(MODEL, [texts(b"good film"), texts(b"a bad film")], streams=True)
    for at, words in enumerate((2, 3)):
        began = time.perf_counter()
        came = list(requests.send(at, timeout_s=30) or ())
        assert came == sorted(came) and began < came[0] and came[-1] <= time.perf_counter()
        if kind == "triton":
            assert len(came) == words and came[-1] > came[0]


def test_generators_tell_of_each_response_by_one_clock(server: InferenceServer, kind: str) -> None:
    requests, schedule = server.prepared(MODEL, [texts(b"good film")], streams=True), np.linspace(0, 0.5, 6)
    found = drive(requests, schedule, timeout_s=30, progress=lambda sent: None, generators=Generators(2))
    assert [one.error for one in found] == [""] * 6
    assert all(one.due_s <= one.came_s[0] <= one.came_s[-1] <= one.done_s for one in found)
    assert {len(one.came_s) for one in found} == {2 if kind == "triton" else 1}


@pytest.mark.parametrize("kind", [TRITON], indirect=True)
def test_a_stream_that_takes_too_long_is_a_timeout(server: InferenceServer) -> None:
    """Though it had begun to answer."""
    long = texts(b" ".join([b"word"] * 400))
    requests = server.prepared(MODEL, [long], streams=True)
    for ask in (lambda: server.infer(MODEL, long, timeout_s=0.3), lambda: requests.send(0, timeout_s=0.3)):
        with pytest.raises(InferenceError) as caught:
            ask()
        assert caught.value.reason == "timeout"


class _Told(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses to be asked for one response, and streams what it is told to."""

    def __init__(self, told: list[service_pb2.ModelStreamInferResponse]) -> None:
        self.told = told

    def service(self, call: Any) -> Any:
        if call.method.endswith("/ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: iter(self.told),
                response_serializer=service_pb2.ModelStreamInferResponse.SerializeToString,
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: context.abort(
                grpc.StatusCode.UNIMPLEMENTED, "ModelInfer doesn't support models with decoupled transaction policy"
            )
        )


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([], "without a response"),
        ([service_pb2.ModelStreamInferResponse(error_message="out of memory")], "out of memory"),
    ],
)
def test_an_error_under_a_status_of_success_and_an_empty_stream_are_no_answers(told: list[Any], says: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        stub = grpc.server(pool, handlers=(_Told(told),))
        port = stub.add_insecure_port("127.0.0.1:0")
        stub.start()
        with contextlib.closing(TritonServer("127.0.0.1", port, port)) as client:
            requests = client.prepared(MODEL, [texts(b"good")], streams=True)
            asks = (
                lambda: client.infer(MODEL, texts(b"good"), timeout_s=30),
                lambda: requests.send(0, timeout_s=30),
            )
            for ask in asks:
                with pytest.raises(InferenceError, match=re.escape(says)) as caught:
                    ask()
                assert caught.value.reason == "server_error"
        stub.stop(None).wait()


def test_pieces_are_put_together_text_by_text() -> None:
    one, two = np.array([[b"a"], [b"b"]], object), np.array([[b"c"], [b"d"]], object)
    numbers = np.array([[1.0], [2.0]])
    found = joined([{"y": one, "n": numbers}, {"y": two, "n": 2 * numbers}])
    assert found["y"].tolist() == [[b"ac"], [b"bd"]] and found["n"].tolist() == [[2], [4]]
