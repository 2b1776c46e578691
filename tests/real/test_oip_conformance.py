"""The Open Inference Protocol through a real gateway and a real Triton: each call of the stock client, without a header of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.traffic.core.asleep import PREPARING_AGAIN_S, Asleep
from serving.traffic.core.routes import Arm, ModelRoute, ServerAddress
from tests.contracts.serving_models import VENV
from tests.support.rigs.echo_rig import MODEL, echo, stable
from tests.support.rigs.gateway_rig import Rig, rig

pytestmark = [pytest.mark.real("triton", "envoy", "onnx"), pytest.mark.timeout(300)]

CLIENT = Path(__file__).with_name("oip_client.py")
NOT_OFFERED = "501 the gateway does not offer this call"
UNIMPLEMENTED = "UNIMPLEMENTED the gateway does not offer this call"
NO_MODEL = "no such model here; name it in the path"
A_VERSION = "; a version chooses no release here: leave it out, and the gateway chooses the release"
#: Call → what begins the outcome over HTTP and over gRPC. The first rows are the required part of the protocol.
EXPECTED: dict[str, tuple[str, str]] = {
    "server live": ("True", "True"),
    "server ready": ("True", "True"),
    "server metadata": ("sluicegate", "sluicegate"),
    "model ready": ("True", "True"),
    "model ready, version 1": ("True", "True"),
    "model metadata": (MODEL, MODEL),
    "model metadata, version 1": (MODEL, MODEL),
    "infer": ("the same", "the same"),
    "infer, version 1": ("the same", "the same"),
    "infer, version 7": (
        f"404 Request for unknown model: '{MODEL}' version 7 is not found{A_VERSION}",
        f"NOT_FOUND Request for unknown model: '{MODEL}' version 7 is not found{A_VERSION}",
    ),
    "infer, version latest": (f"404 Not Found{A_VERSION}", "INVALID_ARGUMENT failed to get model version"),
    "infer, unknown model": (f"404 {NO_MODEL}", f"NOT_FOUND {NO_MODEL}"),
    "unknown model ready": ("False", f"NOT_FOUND {NO_MODEL}"),
    # Triton's extensions that are offered.
    "model config": (MODEL, MODEL),
    "statistics": (MODEL, MODEL),
    # Those that are not, since they show or change a server that releases share.
    **dict.fromkeys(
        (
            "statistics of all", "repository index", "load", "unload", "trace settings", "trace settings of a model",
            "set trace settings", "log settings", "set log settings", "shared memory", "register shared memory",
            "unregister shared memory", "CUDA memory", "register CUDA memory", "unregister CUDA memory",
        ),
        (NOT_OFFERED, UNIMPLEMENTED),
    ),
}  # fmt: skip
#: Calls that one client alone has.
ONLY = {
    "http": {"infer, as JSON": "the same"},
    "grpc": {"stream": "the same", "stream, unknown model": f"NOT_FOUND {NO_MODEL}"},
}
_HEALTH = "/grpc.health.v1.Health/"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, ServerAddress]]:
    with echo(tmp_path_factory.mktemp("oip")) as found:
        yield found


@pytest.fixture
def gateway(world: tuple[Rig, ServerAddress]) -> Rig:
    built, server = world
    built.apply(None, model=MODEL, stable=stable(server))
    return built


def health(gateway: Rig, service: bytes = b"", call: str = "Check") -> bytes:
    """The answer of gRPC's health service. Raises grpc.RpcError."""
    sent = bytes([10, len(service)]) + service if service else b""
    with gateway.envoy.channel() as channel:
        return bytes(channel.unary_unary(f"{_HEALTH}{call}")(sent, timeout=50))


SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


def test_the_stock_client_gets_what_the_protocol_promises(gateway: Rig) -> None:
    address = f"127.0.0.1:{gateway.envoy.port}"
    argv = [str(VENV / "bin" / "python"), str(CLIENT), address, address, MODEL]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    for column, protocol in enumerate(("http", "grpc")):
        expected = {**{call: both[column] for call, both in EXPECTED.items()}, **ONLY[protocol]}
        assert outcomes[protocol].keys() == expected.keys()
        wrong = {call: got for call, got in outcomes[protocol].items() if not got.startswith(expected[call])}
        assert not wrong, (protocol, wrong)


def test_server_metadata_is_the_gateways_own(gateway: Rig) -> None:
    over_http = json.loads(gateway.envoy.http("/v2", method="GET").body)
    with gateway.envoy.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        over_grpc = stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=50)
    assert over_http == {
        "name": over_grpc.name,
        "version": over_grpc.version,
        "extensions": list(over_grpc.extensions),
    }
    assert over_http["name"] == "sluicegate"
    assert over_http["version"]


def test_grpc_health_is_the_gateways_or_a_models(gateway: Rig) -> None:
    assert health(gateway) == SERVING
    assert health(gateway, MODEL.encode()) == SERVING
    with pytest.raises(grpc.RpcError, match=NO_MODEL) as caught:
        health(gateway, b"nope")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        health(gateway, call="Watch")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def is_ready(gateway: Rig) -> tuple[int, bool, bytes]:
    """What HTTP, ModelReady and Health/Check answer for the model."""
    status = gateway.envoy.http(f"/v2/models/{MODEL}/ready", method="GET").status
    with gateway.envoy.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=50)
    return status, answer.ready, health(gateway, MODEL.encode())


def test_a_model_without_a_server_is_not_ready_and_is_no_unknown_model(
    gateway: Rig, world: tuple[Rig, ServerAddress]
) -> None:
    assert is_ready(gateway) == (200, True, SERVING)
    gateway.apply(None, model=MODEL, stable=stable(None))
    assert is_ready(gateway) == (503, False, NOT_SERVING)
    gateway.apply(None, model=MODEL, stable=stable(world[1]), is_stable_lost=True)  # its last address is kept
    assert is_ready(gateway) == (503, False, NOT_SERVING)
    gateway.apply(None, model=MODEL, stable=stable(world[1]), asleep=Asleep(7))
    assert is_ready(gateway) == (503, False, NOT_SERVING)


def test_callers_of_a_model_whose_first_release_is_prepared_read_so(gateway: Rig) -> None:
    made = ModelRoute.preparing(MODEL, 5, Arm("r1", Rig.STABLE))
    gateway.apply(None, **{name: getattr(made, name) for name in ("model", "stable", "asleep")})
    words = f"model_preparing: no release of {MODEL} has traffic here yet; r1 is being prepared. Try again in 10 s"
    answer = gateway.envoy.http(f"/v2/models/{MODEL}/infer")
    assert (answer.status, answer.headers["retry-after"]) == (503, str(PREPARING_AGAIN_S))
    assert json.loads(answer.body) == {"error": words}
    with gateway.envoy.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(service_pb2.ModelInferRequest(model_name=MODEL), timeout=50)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, words)
    assert is_ready(gateway) == (503, False, NOT_SERVING)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/v2/health/ready", 200),
        ("OPTIONS", "/", 200),
        ("POST", "/", 404),
        ("POST", "/v2", 404),
        ("DELETE", "/v2/health/ready", 404),
        ("GET", "/", 200),
        ("GET", "/v2/", 200),
        ("GET", "//v2//health//ready/", 200),
        ("GET", f"/v2/models/{MODEL}/", 200),
        ("GET", f"/v2/models/{MODEL}/ready/?x=1", 200),
        ("GET", "/v2/models/ec%68o/ready", 200),
        ("OPTIONS", f"/v2/models/{MODEL}/infer", 405),
        ("GET", f"/v2/models/{MODEL}/infer", 405),
        ("GET", f"/v2/models/{MODEL}%2finfer", 400),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/ECHO/ready", 404),
        ("GET", f"/v2/models/{MODEL}/nonsense", 404),
    ],
)
def test_ways_to_write_an_address(gateway: Rig, method: str, path: str, status: int) -> None:
    assert gateway.envoy.http(path, method=method, body=b"").status == status


def test_a_header_of_ours_asks_the_same_gateway(gateway: Rig) -> None:
    named = {"x-sluicegate-model": MODEL}
    assert gateway.envoy.http("/v2/health/ready", named, method="GET").status == 200
    assert json.loads(gateway.envoy.http("/v2", named, method="GET").body)["name"] == "sluicegate"
    with gateway.envoy.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerReady(service_pb2.ServerReadyRequest(), metadata=tuple(named.items()), timeout=50).ready


def test_the_name_of_a_message_is_found_behind_other_fields(gateway: Rig) -> None:
    """Clients that write a message by hand need not begin with field 1."""
    with gateway.envoy.channel() as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
        assert ask(b"\x12\x011" + b"\x0a\x04" + MODEL.encode(), timeout=50) == b"\x08\x01"


def test_a_gateway_without_its_routes_is_not_ready(tmp_path: Path) -> None:
    """Its port stays shut until it has taken all of them."""
    with rig(tmp_path) as built:
        assert not built.envoy.is_open()
        built.apply(None)
        assert built.envoy.http("/v2/health/ready", method="GET").status == 200


def test_a_drained_gateway_is_alive_and_not_ready_over_both_protocols(tmp_path: Path) -> None:
    with rig(tmp_path, is_drained=True) as built:
        built.apply(None)
        for path, status in (("/v2/health/live", 200), ("/v2/health/ready", 503), ("/", 503)):
            assert built.envoy.http(path, method="GET").status == status, path
        with built.envoy.channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=50).live
            assert not stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=50).ready
        assert health(built) == NOT_SERVING
        assert health(built, b"sentiment") == SERVING  # models are answered as before
        assert built.envoy.http().status == 200


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [b""],
        [b"\xff" * 20],
        [b"\x0a\xff\xff\xff\xff\x7f"],
        [b"\x0a\x04nope"],
        [b"\x3a\x80\x80\x80\x08" + bytes(2**24)],
    ],
    ids=["none", "empty", "garbage", "cut", "unknown", "large"],
)
def test_a_stream_that_names_no_model_is_refused(gateway: Rig, messages: list[bytes]) -> None:
    with gateway.envoy.channel() as channel:
        ask = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError) as caught:
            list(ask(iter(messages), timeout=50))
    expected = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
    assert caught.value.code() in expected, caught.value.details()
    assert is_ready(gateway) == (200, True, SERVING)
