"""Callers whose head or body is too large or never comes, on a real Envoy: told in time, and no failure of a release."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.traffic.control_plane import listener, request_guard
from tests.support.rigs.gateway_rig import MODEL, Rig, rig

pytestmark = pytest.mark.real("envoy")
HEAD_S, REQUEST_S = 1, 2
START = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: gateway\r\n"


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A gateway that waits no longer than a test likes to."""
    monkeypatch.setattr(listener, "HEAD_WITHIN_S", HEAD_S)
    monkeypatch.setattr(request_guard, "BODY_WITHIN_S", REQUEST_S)
    with rig(tmp_path) as built:
        built.apply(5000)
        yield built


def answered(line: socket.socket) -> tuple[int, float]:
    """(status, seconds until it came)."""
    began = time.monotonic()
    answer = http.client.HTTPResponse(line)
    answer.begin()
    return answer.status, time.monotonic() - began


def is_nobodys_failure(parts: Rig) -> bool:
    found = parts.counters()
    arms = found.by_release.values()
    return (found.user_errors, sum(one.failed + one.shed + one.decided for one in arms)) == (0, 0)


def test_a_head_that_stops_is_answered_408(parts: Rig) -> None:
    with socket.create_connection(("127.0.0.1", parts.envoy.port), 60) as line:
        line.sendall(START.encode())
        status, seconds = answered(line)
    assert status == 408 and seconds < 20 * HEAD_S  # it would never come
    assert is_nobodys_failure(parts) and parts.stable.hits + parts.candidate.hits == 0


@pytest.mark.parametrize("does_drip", [False, True], ids=["stops", "drips"])
def test_a_body_that_never_comes_whole_is_answered_408(parts: Rig, does_drip: bool) -> None:
    with socket.create_connection(("127.0.0.1", parts.envoy.port), 60) as line:
        line.sendall(f"{START}content-length: 1000\r\n\r\n{{".encode())
        for _ in range(3 if does_drip else 0):
            time.sleep(0.3)
            line.sendall(b" ")
        status, seconds = answered(line)
    assert status == 408 and seconds < 20 * REQUEST_S
    assert is_nobodys_failure(parts) and parts.stable.hits + parts.candidate.hits == 0


def test_a_grpc_message_that_never_comes_is_the_callers_fault(parts: Rig) -> None:
    told = threading.Event()

    def never() -> Iterator[bytes]:
        told.wait(60)
        yield b""

    with parts.envoy.channel() as channel:
        call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(never(), timeout=60, metadata=(("x-sluicegate-model", MODEL),))
        told.set()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert is_nobodys_failure(parts) and parts.stable.hits + parts.candidate.hits == 0


def test_three_hundred_stalled_callers_hold_nobody_up(parts: Rig) -> None:
    stalled = [socket.create_connection(("127.0.0.1", parts.envoy.port), 60) for _ in range(300)]
    try:
        for line in stalled:
            line.sendall(f"{START}content-length: 1000\r\n\r\n{{".encode())
        assert {parts.envoy.http().status for _ in range(50)} == {200}
        assert {answered(line)[0] for line in stalled} == {408}
    finally:
        for line in stalled:
            line.close()


@pytest.mark.parametrize(
    "head", [{"x-large": "a" * 40_000}, {f"x-{i}": "a" for i in range(150)}], ids=["bytes", "lines"]
)
def test_a_head_that_is_too_large_is_answered_431(parts: Rig, head: dict[str, str]) -> None:
    assert parts.envoy.http(headers=head).status == 431
    with parts.envoy.channel() as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"", metadata=tuple(head.items()), timeout=60)
    assert is_nobodys_failure(parts) and parts.stable.hits + parts.candidate.hits == 0
    assert parts.envoy.http(headers={"authorization": "a" * 8000, "x_under_score": "1"}).status == 200
