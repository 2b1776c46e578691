"""A real Envoy tells which requests failed or were slow: their ids, their servers, how long they took, and nothing of the others."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.traffic.control_plane.request_log import FAILED, SLOW, LoggedRequest
from serving.traffic.core.request_limits import Limits
from tests.support.rigs.gateway_rig import MODEL, Rig, grpc_infer, rig, wait_until

pytestmark = pytest.mark.real("envoy")
LIMITS = Limits(timeout_s=6.0, attempt_timeout_s=0.8)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def told(parts: Rig, request_id: str) -> LoggedRequest:
    """What the gateway told of this request, once it did."""
    return wait_until(lambda: [one for one in parts.plane.requests if one.request_id == request_id], request_id)[0]


def test_a_failed_attempt_is_told_with_its_server_though_the_user_got_an_answer(parts: Rig) -> None:
    parts.apply(10_000, limits=LIMITS, slow_ms=60_000)
    parts.candidate.mode = "error"
    answer = parts.envoy.http(headers={"x-request-id": "mine-1"})
    assert answer.status == 200 and answer.headers["x-request-id"] == "mine-1"
    one = told(parts, "mine-1")
    assert (one.kind, one.digest, one.http_status) == (FAILED, Rig.CANDIDATE, 500)
    assert one.server == f"127.0.0.1:{parts.candidate.http_port}" and one.took_ms < 60_000 and one.tries == 1
    with parts.envoy.channel() as channel:
        assert grpc_infer(channel, metadata=(("x-request-id", "mine-2"),))[0] is grpc.StatusCode.OK
    one = told(parts, "mine-2")
    assert (one.kind, one.digest, one.grpc_status) == (FAILED, Rig.CANDIDATE, 13)
    assert one.server == f"127.0.0.1:{parts.candidate.grpc_port}"


def test_a_server_that_is_gone_is_told(parts: Rig) -> None:
    parts.apply(10_000, limits=LIMITS)
    parts.candidate.stop()
    assert parts.envoy.http(headers={"x-request-id": "gone"}).status == 200
    one = told(parts, "gone")
    assert (one.kind, one.digest, one.http_status) == (FAILED, Rig.CANDIDATE, 0) and "UF" in one.flags


def test_what_is_slow_or_late_is_told_for_the_release_that_was_drawn(parts: Rig) -> None:
    parts.apply(10_000, limits=LIMITS, slow_ms=200)
    parts.candidate.delay_s = 0.3
    assert parts.envoy.http(headers={"x-request-id": "slow"}).status == 200
    one = told(parts, "slow")
    assert (one.kind, one.digest, one.http_status, one.tries) == (SLOW, Rig.CANDIDATE, 200, 1)
    assert one.took_ms >= 200 and one.server == f"127.0.0.1:{parts.candidate.http_port}"
    parts.candidate.delay_s, parts.candidate.mode = 0.0, "hang"
    assert parts.envoy.http(headers={"x-request-id": "late"}).by == "stable"
    one = told(parts, "late")
    assert (one.kind, one.digest, one.tries) == (SLOW, Rig.CANDIDATE, 2) and one.took_ms >= 790


def test_a_request_under_ten_milliseconds_is_told_where_that_is_slow(parts: Rig) -> None:
    parts.apply(10_000, limits=LIMITS, slow_ms=5)
    parts.candidate.delay_s = 0.006
    assert parts.envoy.http(headers={"x-request-id": "quick"}).status == 200
    assert told(parts, "quick").kind == SLOW


def test_a_caller_that_sends_slowly_makes_no_slow_request(parts: Rig) -> None:
    parts.apply(10_000, limits=LIMITS, slow_ms=200)
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: g\r\nx-request-id: drips\r\ncontent-length: 2\r\n\r\n"
    with socket.create_connection(("127.0.0.1", parts.envoy.port), 50) as line:
        line.sendall(head.encode())
        time.sleep(0.5)
        line.sendall(b"{}")
        assert b"200 OK" in line.recv(65536)
    parts.candidate.delay_s = 0.3
    assert parts.envoy.http(headers={"x-request-id": "last"}).status == 200
    told(parts, "last")
    assert {one.request_id for one in parts.plane.requests} == {"last"}


def test_nothing_is_told_of_requests_that_are_well_and_of_callers_mistakes(parts: Rig) -> None:
    parts.apply(5000, limits=LIMITS, slow_ms=60_000)
    for number in range(20):
        assert parts.envoy.http(headers={"x-request-id": f"well-{number}"}).status == 200
    with parts.envoy.channel() as channel:
        assert grpc_infer(channel, metadata=(("x-request-id", "well-grpc"),))[0] is grpc.StatusCode.OK
    parts.stable.mode = parts.candidate.mode = "bad_input"
    assert parts.envoy.http(headers={"x-request-id": "theirs"}).status == 400
    parts.stable.mode = parts.candidate.mode = "error"
    assert parts.envoy.http(headers={"x-request-id": "last"}).status == 500
    told(parts, "last")
    assert {one.request_id for one in parts.plane.requests} == {"last"}


def test_an_id_is_given_where_the_caller_sent_none(parts: Rig) -> None:
    parts.apply(0, limits=LIMITS)
    parts.stable.mode = "error"
    answer = parts.envoy.http(path=f"/v2/models/{MODEL}/infer")
    assert told(parts, answer.headers["x-request-id"]).digest == Rig.STABLE
