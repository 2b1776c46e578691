"""Callers who would fill a real gateway's memory, or take all of its connections: bounded, and the gateway lives on."""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.traffic.adapters import envoy_bootstrap
from serving.traffic.core.routes import REQUEST_BYTES, Arm
from tests.support.rigs import gateway_rig
from tests.support.rigs.gateway_rig import MODEL, Rig, grpc_infer, rig, wait_until
from tests.support.servers.hostile import message, packed, raw

pytestmark = [pytest.mark.real("envoy"), pytest.mark.timeout(300)]
MIB = 2**20
HEAP = 256 * MIB
CONNECTIONS = 40


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A gateway with little memory and few connections, and a model that takes the largest requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envoy_bootstrap, "MOST_CONNECTIONS", CONNECTIONS)
        small = functools.partial(envoy_bootstrap.bootstrap, heap_bytes=HEAP)
        patch.setattr(gateway_rig, "bootstrap", small)
        with rig(tmp_path_factory.mktemp("memory")) as built:
            stable = Arm("r1", Rig.STABLE, (built.stable.endpoint,), 100, max_request_bytes=64 * MIB)
            built.apply(None, stable=stable)
            yield built


def head(model: str, length: int) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "host: gateway", f"content-length: {length}"]
    return "\r\n".join([*lines, "inference-header-content-length: 2", "", ""]).encode()


def resident(parts: Rig) -> int:
    assert parts.envoy.pid is not None
    lines = Path(f"/proc/{parts.envoy.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def test_who_asks_for_no_model_is_told_so_before_the_body(parts: Rig) -> None:
    with socket.create_connection(("127.0.0.1", parts.envoy.port), 30) as line:
        line.sendall(head("nobodys", 60 * MIB))
        assert line.recv(100).startswith(b"HTTP/1.1 404")

    told = threading.Event()

    def never() -> Iterator[bytes]:
        told.wait(60)
        yield b""

    with parts.envoy.channel() as channel:
        call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(never(), timeout=30, metadata=(("x-sluicegate-model", "nobodys"),))
        told.set()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_what_is_large_says_in_its_head_which_model_it_is_for(parts: Rig) -> None:
    large = message(MODEL, packed(1, REQUEST_BYTES // 4)) + raw(b"\0" * REQUEST_BYTES)
    with parts.envoy.channel() as channel:
        assert grpc_infer(channel, request=large)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        code, _, by = grpc_infer(channel, request=large, metadata=(("x-sluicegate-model", MODEL),))
        assert (code, by) == (grpc.StatusCode.OK, "stable")
        assert grpc_infer(channel)[0] is grpc.StatusCode.OK


def test_requests_that_fill_the_memory_are_ended(parts: Rig) -> None:
    lines = [socket.create_connection(("127.0.0.1", parts.envoy.port), 30) for _ in range(20)]
    pieces, stop, most, seen = b"{}" + b"\0" * (MIB - 2), threading.Event(), [0], set()

    def watch() -> None:
        while not stop.is_set():
            most[0] = max(most[0], resident(parts))
            time.sleep(0.01)

    def fill(line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            line.sendall(head(MODEL, 61 * MIB))
            for _ in range(60):
                line.sendall(pieces)
                time.sleep(0.05)  # all together as fast as a network of 3 Gbit/s

    callers = [threading.Thread(target=fill, args=(line,)) for line in lines]
    watcher = threading.Thread(target=watch)
    try:
        for one in (watcher, *callers):
            one.start()
        while any(one.is_alive() for one in callers):
            with contextlib.suppress(OSError):
                seen.add(parts.envoy.http().status)
        wait_until(lambda: _is_well(parts), "room for a small request beside what is held")
    finally:
        stop.set()
        for line in lines:
            line.close()
        for one in (watcher, *callers):
            one.join(30)
    assert {200} <= seen <= {200, 503}
    assert most[0] < 3 * HEAP  # 1,300 MB without a bound
    assert [one.failed for one in parts.counters().by_release.values()] == [0]


def test_connections_are_bounded_and_the_counters_stay_readable(parts: Rig) -> None:
    assert parts.envoy.http().status == 200  # something to count
    lines = [socket.create_connection(("127.0.0.1", parts.envoy.port), 30) for _ in range(CONNECTIONS)]
    try:
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            parts.envoy.http()
        assert "sli" in parts.envoy.admin("/stats")
    finally:
        for line in lines:
            line.close()
    wait_until(lambda: _is_well(parts), "connections for others")


def _is_well(parts: Rig) -> bool:
    with contextlib.suppress(OSError):
        return parts.envoy.http().status == 200
    return False
