"""Which requests a real Envoy lets through, and to which release: by the model's name, by the call, by force."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import FORCES, MODEL, Answer, Rig, grpc_infer, rig, wait_until

pytestmark = pytest.mark.real("envoy")
CANDIDATE = Rig.CANDIDATE


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def test_an_unknown_model_is_said_so(parts: Rig) -> None:
    parts.apply(None)
    answer = parts.envoy.http("/v2/models/nope/infer")
    assert answer.status == 404
    assert b'"error":"no such model here' in answer.body
    assert answer.headers["content-type"] == "application/json"
    with parts.envoy.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(service_pb2.ModelInferRequest(model_name="nope"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "x-sluicegate-model" in caught.value.details()


def said_in_http_10(parts: Rig, head: str, body: bytes = b"") -> bytes:
    with socket.create_connection(("127.0.0.1", parts.envoy.port), timeout=20) as line:
        line.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        return b"".join(iter(lambda: line.recv(4096), b""))


@pytest.mark.parametrize("host", ["", "\r\nhost: gateway"])
def test_a_caller_of_http_10_is_served_and_asked_for_no_host(parts: Rig, host: str) -> None:
    """As nginx with its defaults in front of the gateway, and the health checks of some load balancers."""
    parts.apply(None)
    ready = said_in_http_10(parts, f"GET /v2/health/ready HTTP/1.0{host}")
    assert ready.split()[1] == b"200", ready
    infer = said_in_http_10(
        parts, f"POST /v2/models/{MODEL}/infer HTTP/1.0{host}\r\ncontent-type: application/json", b'{"inputs":[]}'
    )
    assert infer.split()[1] == b"200", infer
    assert parts.stable.hits == 1


def test_the_model_comes_from_header_path_body_or_authority(parts: Rig) -> None:
    parts.apply(None)
    assert parts.envoy.http().status == 200
    assert parts.envoy.http("/v2/models/other/infer", {"x-sluicegate-model": MODEL}).status == 200
    assert parts.envoy.http(f"/v2/models/{MODEL}/versions/1/infer").status == 200
    with parts.envoy.channel() as channel:
        assert grpc_infer(channel)[0] is grpc.StatusCode.OK
        assert grpc_infer(channel, "other", (("x-sluicegate-model", MODEL),))[0] is grpc.StatusCode.OK
    options = [("grpc.default_authority", f"{MODEL}:80")]
    with grpc.insecure_channel(f"127.0.0.1:{parts.envoy.port}", options=options) as channel:
        assert grpc_infer(channel, "")[0] is grpc.StatusCode.OK


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/models/sentiment/load",
        "/v2/models/sentiment/trace/setting",
        "/v2/models/../repository/index",
        "/v2/models/%2e%2e/repository/index",
        "/v2/models/sentiment/../../repository/index",
        "/v2/systemsharedmemory/status",
        "/v2/logging",
        "/metrics",
    ],
)
def test_calls_that_change_a_server_do_not_pass(parts: Rig, path: str) -> None:
    parts.apply(None)
    answer = parts.envoy.http(path, {"x-sluicegate-model": MODEL})
    assert answer.status in {400, 404, 501}
    assert parts.stable.hits == 0


@pytest.mark.parametrize(
    "call", ["RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryRegister", "TraceSetting"]
)
def test_grpc_calls_that_change_a_server_do_not_pass(parts: Rig, call: str) -> None:
    parts.apply(None)
    with parts.envoy.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/inference.GRPCInferenceService/{call}")(b"", metadata=(("x-sluicegate-model", MODEL),))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def forced(parts: Rig, name: str) -> Answer:
    return parts.envoy.http(headers={**FORCES, "x-sluicegate-release": name})


def test_no_caller_asks_a_server_for_what_would_end_it(parts: Rig) -> None:
    parts.apply(10_000)
    asked = {"Triton_GRPC_Error": "true", "x-mine": "1"}
    assert parts.envoy.http(f"/v2/models/{MODEL}/infer", headers=asked).status == 200
    assert b"x-mine: 1" in parts.candidate.head
    assert b"triton_grpc_error" not in parts.candidate.head


def test_a_forced_release_answers_without_fallback_and_outside_the_counts(parts: Rig) -> None:
    parts.apply(0, allows_forced=True)
    assert forced(parts, "r2").release == "r2"
    assert forced(parts, CANDIDATE).release == "r2"
    assert forced(parts, "r1").release == "r1"
    with parts.envoy.channel() as channel:
        shown = (*FORCES.items(), ("x-sluicegate-release", "r2"))
        assert grpc_infer(channel, metadata=shown)[1] == "r2"
    assert forced(parts, "r99").status == 404
    parts.candidate.mode = "error"
    answer = forced(parts, "r2")
    assert (answer.status, answer.release) == (500, "r2")
    assert b"x-sluicegate-release-key" not in parts.candidate.head
    assert (parts.counters().by_release, parts.counters().forced) == ({}, 5)


@pytest.mark.parametrize("key", ["", "another"])
def test_who_does_not_show_the_key_forces_no_release(parts: Rig, key: str) -> None:
    parts.apply(5000, allows_forced=True)
    shown = {"x-sluicegate-release": "r2", **({"x-sluicegate-release-key": key} if key else {})}
    answer = parts.envoy.http(headers=shown)
    assert (answer.status, "sluicegate environment show" in json.loads(answer.body)["error"]) == (403, True)
    with parts.envoy.channel() as channel:
        assert grpc_infer(channel, metadata=tuple(shown.items()))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert parts.stable.hits == parts.candidate.hits == 0
    assert parts.counters().by_release == {}


def test_one_forced_request_runs_at_a_time_over_either_protocol(parts: Rig) -> None:
    """What one release gets alone slows down the users that it is compared by."""
    parts.apply(5000, allows_forced=True)
    shown = {**FORCES, "x-sluicegate-release": "r2"}
    with ThreadPoolExecutor(1) as pool, parts.envoy.channel() as channel:
        with parts.candidate.held():
            first = pool.submit(forced, parts, "r2")
            wait_until(lambda: parts.candidate.hits == 1, "the first is under way")
            assert (parts.counters().forced, parts.counters().forced_now) == (0, 1)
            second = forced(parts, "r2")
            assert (second.status, second.headers["retry-after"]) == (429, "1")
            assert grpc_infer(channel, metadata=tuple(shown.items()))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert forced(parts, "r1").release == "r1"
        assert first.result().release == "r2"
        assert grpc_infer(channel, metadata=tuple(shown.items()))[1] == "r2"
    counted = parts.counters()
    assert (counted.forced, counted.forced_now, dict(counted.by_release)) == (5, 0, {})


def test_a_release_that_only_waits_can_be_forced(parts: Rig) -> None:
    waiting = Arm("r2", CANDIDATE, (parts.candidate.endpoint,))
    parts.apply(None, allows_forced=True, others=(waiting,))
    assert forced(parts, "r2").release == "r2"
    assert {parts.envoy.http().release for _ in range(10)} == {"r1"}


def test_where_it_is_not_allowed_a_forced_release_is_ignored(parts: Rig) -> None:
    parts.apply(0, allows_forced=False)
    assert forced(parts, "r2").release == "r1"
    assert forced(parts, "r99").release == "r1"
