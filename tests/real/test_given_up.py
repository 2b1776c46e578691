"""Callers leave before an answer, behind a real Envoy: the engine's counts hold how long they waited, and nothing beyond."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2

from rollouts.core.counter_deltas import GIVEN_UP, TIMED, Counts, given_up_after
from rollouts.engine.gateway_counters import counts_of
from serving.traffic.core.request_limits import Limits
from tests.support.rigs.gateway_rig import MODEL, Rig, rig, wait_until

pytestmark = pytest.mark.real("envoy")
#: Every caller waits longer than the first, and none as long as the second.
EDGES = (("slow_50ms", 50_000, ""), ("slow_60000ms", 60_000_000, ""))
WAITED_S = 0.3
PATIENT = Limits(50.0, 50.0)
METHOD = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def counted(parts: Rig) -> Counts:
    return counts_of(parts.counters().by_release[Rig.STABLE], EDGES)


def leave_over_http(parts: Rig) -> None:
    line = http.client.HTTPConnection("127.0.0.1", parts.envoy.port, timeout=50)
    line.request("POST", f"/v2/models/{MODEL}/infer", b"{}", {})
    time.sleep(WAITED_S)
    line.close()


def leave_over_grpc(parts: Rig, channel: grpc.Channel) -> None:
    hits = parts.stable.hits
    message = service_pb2.ModelInferRequest(model_name=MODEL).SerializeToString()
    call = channel.unary_unary(METHOD).future(message)
    wait_until(lambda: parts.stable.hits > hits, "the server has the call")
    time.sleep(WAITED_S)
    call.cancel()


def test_a_caller_who_leaves_counts_at_the_thresholds_that_the_caller_waited_for(parts: Rig) -> None:
    parts.apply(None, limits=PATIENT)
    assert parts.envoy.http().status == 200
    parts.stable.mode = "hang"
    leave_over_http(parts)
    with parts.envoy.channel() as channel:
        leave_over_grpc(parts, channel)
        wait_until(lambda: counted(parts).bad.get(GIVEN_UP) == 2, "the attempts have ended")
    found = counted(parts)
    assert found.bad[given_up_after("slow_50ms")] == 2
    assert given_up_after("slow_60000ms") not in found.bad
    assert found.bad["slow_50ms"] - found.bad["slow_60000ms"] >= 2
    assert (found.attempts, found.routed, found.bad[TIMED]) == (1, 3, 1)
