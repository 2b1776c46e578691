"""A real gateway behind load balancers with their own defaults: nginx, HAProxy, and the health checks of clouds."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.rigs.balancer_rig import haproxy, nginx
from tests.support.rigs.certificates import Authority
from tests.support.rigs.gateway_rig import MODEL, Rig, grpc_infer, rig

pytestmark = [pytest.mark.real("envoy"), pytest.mark.timeout(240)]
INFER = f"/v2/models/{MODEL}/infer"
MIB = 2**20
LARGE = 60 * MIB


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path / "gateway") as built:
        stable = replace(built.route(None).stable, max_request_bytes=64 * MIB)
        built.apply(None, stable=stable)
        yield built


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()


def asked(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **how: Any
) -> Any:
    """(status, body, release) through a balancer."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
    try:
        line.request(method, path, body, headers or {}, **how)
        answer = line.getresponse()
        return answer.status, answer.read(), answer.getheader("x-sluicegate-release")
    finally:
        line.close()


def ready(channel: grpc.Channel) -> bool:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    return bool(stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=50).ready)


def assert_serves(port: int) -> None:
    """Readiness, inference, errors and large bodies in the ways that callers send them."""
    assert asked(port, "GET", "/v2/health/ready")[0] == 200
    assert asked(port, "POST", INFER, b'{"inputs":[]}')[::2] == (200, "r1")
    assert asked(port, "POST", INFER, iter([b'{"inputs"', b":[]}"]), encode_chunked=True)[0] == 200
    assert asked(port, "POST", "/v2/models/x/infer", b"{}", {"X-Sluicegate-Model": MODEL})[0] == 200
    status, body, _ = asked(port, "POST", "/v2/models/nope/infer", b"{}")
    assert (status, "no such model here" in json.loads(body)["error"]) == (404, True)
    status, body, _ = asked(port, "POST", INFER, b"[" * 100)
    assert (status, "nested more than" in json.loads(body)["error"]) == (400, True)


def assert_takes_large_bodies(port: int) -> None:
    head = b'{"inputs":[]}'
    told = {"Inference-Header-Content-Length": str(len(head))}
    assert asked(port, "POST", INFER, head + bytes(LARGE), told)[0] == 200
    assert asked(port, "POST", INFER, iter([head, bytes(LARGE)]), told, encode_chunked=True)[0] == 200


def assert_serves_grpc(channel: grpc.Channel) -> None:
    assert ready(channel)
    assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=50) == b"\x08\x01"
    assert grpc_infer(channel)[:2] == (grpc.StatusCode.OK, "r1")
    assert grpc_infer(channel, "nope")[0] is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")(b"", timeout=50)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.real("nginx")
@pytest.mark.parametrize(
    "how",
    [
        "",
        'proxy_http_version 1.1; proxy_set_header Connection "";',
        "proxy_request_buffering off; proxy_http_version 1.1;",
    ],
    ids=["defaults", "keep-alive", "unbuffered"],
)
def test_nginx(parts: Rig, tmp_path: Path, how: str) -> None:
    place = f"location / {{ proxy_pass http://127.0.0.1:{parts.envoy.port}; {how} }}"
    with nginx(tmp_path / "nginx", place) as port:
        assert_serves(port)
        assert asked(port, "POST", INFER, bytes(2 * MIB))[0] == 413  # nginx's own default bound, 1 MiB
    with nginx(tmp_path / "large", f"client_max_body_size 64m; {place}") as port:
        assert_takes_large_bodies(port)


@pytest.mark.real("nginx")
def test_nginx_passes_what_a_caller_expects_to_be_told(parts: Rig, tmp_path: Path) -> None:
    """`Expect: 100-continue`, as curl sends with a large body: through nginx, and to the gateway itself."""
    with nginx(tmp_path / "nginx", f"location / {{ proxy_pass http://127.0.0.1:{parts.envoy.port}; }}") as port:
        for where in (port, parts.envoy.port):
            with socket.create_connection(("127.0.0.1", where), timeout=50) as line:
                head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n"
                line.sendall(f"{head}\r\n".encode())
                assert line.recv(4096).startswith(b"HTTP/1.1 100")
                line.sendall(b"{}")
                assert b"".join(iter(lambda: line.recv(4096), b"")).startswith(b"HTTP/1.1 200")


@pytest.mark.real("nginx")
def test_nginx_passes_grpc_on(parts: Rig, tmp_path: Path) -> None:
    place = f"location / {{ grpc_pass grpc://127.0.0.1:{parts.envoy.port}; }}"
    with (
        nginx(tmp_path / "nginx", place, listen=" http2") as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert_serves_grpc(channel)


@pytest.mark.real("nginx")
def test_nginx_ends_tls_for_both_protocols(parts: Rig, tmp_path: Path) -> None:
    gateway = f"127.0.0.1:{parts.envoy.port}"
    files = Authority(tmp_path).server("127.0.0.1")
    server = f"""
    ssl_certificate {files.certificate}; ssl_certificate_key {files.key};
    location / {{ proxy_pass http://{gateway}; }}
    location ~ ^/(inference|grpc) {{ grpc_pass grpc://{gateway}; }}
    """
    with nginx(tmp_path / "nginx", server, listen=" ssl http2") as port:
        context = ssl.create_default_context(cafile=str(files.authority))
        line = http.client.HTTPSConnection("127.0.0.1", port, timeout=50, context=context)
        line.request("POST", INFER, b"{}")
        assert line.getresponse().status == 200
        line.close()
        credentials = grpc.ssl_channel_credentials(Path(files.authority).read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            assert_serves_grpc(channel)


#: Lines of HAProxy's health checks, and its name for their success. The default is `OPTIONS / HTTP/1.0`.
CHECKS = {
    "tcp": ("", "L4OK"),
    "default": ("option httpchk", "L7OK"),
    "ready": ("option httpchk GET /v2/health/ready", "L7OK"),
    "http-1.1": (
        "option httpchk\n  http-check send meth GET uri /v2/health/ready ver HTTP/1.1 hdr Host 127.0.0.1:8000",
        "L7OK",
    ),
    "head": ("option httpchk HEAD /", "L7OK"),
}


@pytest.mark.real("haproxy")
@pytest.mark.parametrize("check", CHECKS)
def test_haproxy(parts: Rig, tmp_path: Path, check: str) -> None:
    lines, result = CHECKS[check]
    with haproxy(tmp_path / "haproxy", parts.envoy.port, backend=lines) as front:
        front.await_check(("UP", result))
        assert_serves(front.port)
        assert_takes_large_bodies(front.port)
        assert front.check() == ("UP", result)


@pytest.mark.real("haproxy")
def test_haproxy_passes_grpc_on(parts: Rig, tmp_path: Path) -> None:
    with (
        haproxy(tmp_path / "haproxy", parts.envoy.port, bind=" proto h2", server="proto h2") as front,
        grpc.insecure_channel(f"127.0.0.1:{front.port}") as channel,
    ):
        assert_serves_grpc(channel)


@pytest.mark.real("haproxy")
@pytest.mark.parametrize("check", ["option httpchk", "option httpchk GET /v2/health/ready"])
def test_haproxy_sends_a_drained_gateway_nothing(tmp_path: Path, check: str) -> None:
    with rig(tmp_path / "gateway", is_drained=True) as drained:
        drained.apply(None)
        with haproxy(tmp_path / "haproxy", drained.envoy.port, backend=check) as front:
            front.await_check(("DOWN", "L7STS"))
            assert asked(front.port, "GET", "/v2/health/live")[0] == 503


@pytest.mark.real("haproxy")
def test_the_proxy_protocol_is_refused_and_takes_nothing_down(parts: Rig, tmp_path: Path) -> None:
    """docs/traffic.md states that it is not spoken: a check by it fails, which shows at once."""
    how = {"backend": "option httpchk", "server": "send-proxy check-send-proxy"}
    with haproxy(tmp_path / "haproxy", parts.envoy.port, **how) as front:
        front.await_check(("DOWN", "L7STS"), ("DOWN", "L7RSP"))
    assert parts.envoy.http().status == 200


@pytest.mark.parametrize(
    "head",
    [
        "GET /v2/health/ready HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: GoogleHC/1.0\r\nConnection: Keep-alive",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: GoogleHC/1.0\r\nConnection: Keep-alive",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: ELB-HealthChecker/2.0\r\nConnection: close",
        "GET /v2/health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: ELB-HealthChecker/2.0\r\nConnection: close",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Load Balancer Agent\r\nConnection: close",
        "GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: kube-probe/1.30\r\nConnection: close",
        "HEAD / HTTP/1.0",
        "OPTIONS / HTTP/1.0",
    ],
)
def test_the_health_checks_of_clouds(parts: Rig, head: str) -> None:
    with socket.create_connection(("127.0.0.1", parts.envoy.port), timeout=50) as line:
        line.sendall(f"{head}\r\n\r\n".encode())
        said = line.recv(4096)
    assert said.split()[1] == b"200", said


def test_a_check_that_connects_and_goes_leaves_no_trace(parts: Rig) -> None:
    for _ in range(50):
        socket.create_connection(("127.0.0.1", parts.envoy.port), timeout=50).close()
    assert parts.envoy.http().status == 200
    assert parts.counters().user_errors == 0


def test_the_grpc_check_of_a_cloud_that_counts_unimplemented_as_well(parts: Rig) -> None:
    """An AWS target group of gRPC calls this path by default and takes status 12 for well."""
    with parts.envoy.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/AWS.ALB/healthcheck")(b"", timeout=50)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
