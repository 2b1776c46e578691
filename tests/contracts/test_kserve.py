"""What KServe's own model server does in its own way: what docs/fleet.md says of it, asked of a real one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.ports import GRPC, HTTP, InferenceError
from serving.servers.adapters.triton_control import TritonControl
from tests.contracts import serving_models as made
from tests.support.rigs.kserve_rig import kserve
from tests.support.servers.other_server import HOST, OtherServer

pytestmark = [pytest.mark.real("kserve"), pytest.mark.shows("server:kserve")]
ONES = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherServer]:
    with kserve(tmp_path_factory.mktemp("kserve"), "doubling", made.serving()) as one:
        yield one


def said(server: OtherServer, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    line = http.client.HTTPConnection(HOST, server.http_port, timeout=30)
    try:
        line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def test_tensors_go_as_json_since_it_does_not_say_that_it_takes_bytes(server: OtherServer) -> None:
    requests: Any = server.client.prepared("doubling", [{"x": ONES}], protocol=HTTP)
    assert json.loads(requests.parcel.bodies[0])["inputs"][0]["data"] == [1.0] * 4
    requests.send(0, timeout_s=30)


def test_bytes_behind_the_json_are_taken_all_the_same(server: OtherServer) -> None:
    head = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    text = json.dumps({"inputs": [head], "parameters": {"binary_data_output": True}}).encode()
    status, answer = said(
        server, "POST", "/v2/models/doubling/infer", text + ONES.tobytes(),
        Content_Type="application/octet-stream", Inference_Header_Content_Length=str(len(text)),
    )  # fmt: skip
    assert status == 200 and answer.endswith((2 * ONES).tobytes())


@pytest.mark.parametrize(
    ("protocol", "words"), [(GRPC, "x FP16 is no input of doubling"), (HTTP, "FP16 data via JSON is not supported")]
)
def test_half_floats_are_refused_in_json_and_taken_over_grpc(server: OtherServer, protocol: str, words: str) -> None:
    """Over gRPC it is the model's own code that refuses them."""
    requests = server.client.prepared("doubling", [{"x": ONES.astype(np.float16)}], protocol=protocol)
    with pytest.raises(InferenceError, match=words) as caught:
        requests.send(0, timeout_s=30)
    assert caught.value.reason == "rejected"


@pytest.mark.parametrize(("protocol", "reason"), [(GRPC, "rejected"), (HTTP, "server_error")])
def test_its_own_inference_error_is_the_callers_mistake_over_grpc_alone(
    server: OtherServer, protocol: str, reason: str
) -> None:
    requests = server.client.prepared("doubling", [{"x": 501 * ONES}], protocol=protocol)
    with pytest.raises(InferenceError, match="in KServe's own words") as caught:
        requests.send(0, timeout_s=30)
    assert caught.value.reason == reason


def test_bf16_is_refused_by_the_server_itself(server: OtherServer) -> None:
    request = service_pb2.ModelInferRequest(model_name="doubling", raw_input_contents=[bytes(8)])
    request.inputs.add(name="x", datatype="BF16", shape=[1, 4])
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    assert (caught.value.code().name, caught.value.details()) == ("INVALID_ARGUMENT", "invalid content type")


def test_a_version_in_the_path_is_refused(server: OtherServer) -> None:
    status, answer = said(server, "POST", "/v2/models/doubling/versions/1/infer", b'{"inputs": []}')
    assert status == 501 and b"versioning not supported" in answer


def test_it_is_ready_whatever_it_has_and_a_model_that_its_owner_takes_away_is_missed(server: OtherServer) -> None:
    control = TritonControl(HOST, server.grpc_port)
    about = control.about()
    assert about.name == "kserve" and not about.tells_configuration
    assert control.serves("doubling") and not control.serves("nobody")
    assert said(server, "POST", "/v2/repository/models/doubling/unload")[0] == 200
    try:
        assert not control.serves("doubling") and said(server, "GET", "/v2/health/ready")[0] == 200
        with pytest.raises(InferenceError, match="does not exist") as caught:
            server.client.infer("doubling", {"x": ONES}, timeout_s=30)
        assert caught.value.reason == "rejected"
        assert said(server, "POST", "/v2/repository/models/doubling/load")[0] == 503  # it is gone until a new start
    finally:
        server.kill()
        server.start()
