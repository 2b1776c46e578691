"""A real Envoy under a control plane without a database: weights, fallback, refusals, counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.ports import ArmCounters, GatewayCounters, GatewayError
from serving.traffic.adapters.envoy_bootstrap import FLUSH_S
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.control_plane import snapshot
from serving.traffic.control_plane.virtual_hosts import vhost
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm, ModelRoute
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Rig, Traffic, free_port, grpc_infer, rig, wait_until

pytestmark = pytest.mark.real("envoy")
STABLE, CANDIDATE = Rig.STABLE, Rig.CANDIDATE
LIMITS = Limits(timeout_s=5.0, attempt_timeout_s=0.8)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def arm(counters: GatewayCounters, digest: str) -> ArmCounters:
    return counters.by_release.get(digest, ArmCounters())


def test_a_route_that_envoy_refuses_is_reported_and_the_others_go_on(
    parts: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(route: ModelRoute, *, forced_key: str) -> dict[str, Any]:
        host = vhost(route, forced_key=forced_key)
        return {**host, "domains": ["*", "*"]} if route.model == "twin" else host

    monkeypatch.setattr(snapshot, "vhost", twice)
    parts.apply(0)
    twin = parts.route(0, model="twin", route_id=2)
    good = parts.route(10_000)
    parts.publish(good, twin)
    wait_until(lambda: parts.acked(good.generation), "the good route")
    refused = wait_until(lambda: [one for _, one in parts.plane.acks if one.route_id == 2 and one.error], "the refusal")
    assert "wildcard" in refused[0].error.lower() or "unique" in refused[0].error.lower(), refused
    assert {parts.envoy.http().release for _ in range(5)} == {"r2"}


def test_a_changing_weight_loses_no_request(parts: Rig) -> None:
    parts.apply(0)
    traffic = Traffic(parts.envoy)
    for bp in (1000, 5000, 10_000, 2500, 0, 10_000, None, 5000, 0):
        parts.apply(bp)
        traffic.go_on()
    outcome = traffic.stop()
    assert set(outcome) == {""}, outcome
    assert {release for _, release, _ in traffic.calls} == {"r1", "r2"}


def test_the_candidate_gets_nothing_any_more_as_soon_as_zero_is_acknowledged(parts: Rig) -> None:
    parts.apply(5000)
    traffic = Traffic(parts.envoy)
    seconds = []
    for _ in range(5):
        traffic.go_on()
        decided = time.monotonic()
        parts.apply(0)
        acked = time.monotonic()
        traffic.go_on()
        late = [began for began, release, _ in traffic.calls if release == "r2" and began > acked]
        assert late == []
        seconds.append(acked - decided)
        parts.apply(5000)
    assert set(traffic.stop()) == {""}
    assert min(seconds) < 0.5  # what another program does to one of the rounds says nothing of Envoy


@pytest.mark.parametrize("mode", ["error", "unknown", "lost"])
def test_the_header_names_the_release_that_really_answered(parts: Rig, mode: str) -> None:
    parts.apply(10_000)
    with parts.envoy.channel() as channel:
        assert parts.envoy.http().release == "r2"
        assert grpc_infer(channel)[1:] == ("r2", "candidate")
        parts.candidate.mode = mode
        answer = parts.envoy.http()
        assert (answer.status, answer.release, answer.by) == (200, "r1", "stable")
        assert grpc_infer(channel) == (grpc.StatusCode.OK, "r1", "stable")


def test_a_callers_mistake_is_not_retried_and_no_error(parts: Rig) -> None:
    parts.apply(10_000)
    parts.candidate.mode = "bad_input"
    with parts.envoy.channel() as channel:
        assert grpc_infer(channel)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "r2")
    answer = parts.envoy.http()
    assert (answer.status, answer.release) == (400, "r2")
    counters = parts.counters()
    one = arm(counters, CANDIDATE)
    assert (one.refused, one.decided, one.failed, one.routed, one.timed) == (2, 0, 0, 0, 0)
    assert parts.stable.hits == 0


def test_a_hung_candidate_costs_one_attempt_and_then_nothing(parts: Rig) -> None:
    parts.apply(10_000, limits=Limits(timeout_s=45.0, attempt_timeout_s=0.5))
    parts.candidate.mode = "hang"
    answers = [parts.envoy.http() for _ in range(8)]
    assert {answer.release for answer in answers} == {"r1"}
    assert max(answer.seconds for answer in answers) < 20  # not the whole time
    assert parts.candidate.hits <= 5  # then it was set aside


@pytest.mark.parametrize("mode", ["error", "lost", "full"])
def test_an_attempt_that_fails_after_the_next_has_begun_harms_nobody(parts: Rig, mode: str) -> None:
    """Envoy 1.40 crashed here, each time, where a filter waited for the body of such an answer."""
    parts.apply(10_000, limits=LIMITS)
    parts.candidate.mode, parts.candidate.delay_s = mode, 1.5 * LIMITS.attempt_timeout_s
    parts.stable.delay_s = LIMITS.attempt_timeout_s
    with ThreadPoolExecutor(4) as pool:
        answers = [one.result() for one in [pool.submit(parts.envoy.http) for _ in range(4)]]
    assert {(answer.status, answer.release) for answer in answers} <= {(200, "r1"), (answers[0].status, "r2")}
    assert parts.envoy.is_running()
    parts.candidate.mode, parts.candidate.delay_s, parts.stable.delay_s = "ok", 0.0, 0.0


def test_what_was_in_flight_when_its_server_died_is_handed_to_nobody(parts: Rig) -> None:
    """Any of them may be what ended it, and would end the next one."""
    parts.apply(10_000, limits=Limits(timeout_s=60.0, attempt_timeout_s=60.0))
    with ThreadPoolExecutor(4) as pool, parts.candidate.held():
        waiting = [pool.submit(parts.envoy.http) for _ in range(4)]
        wait_until(lambda: parts.candidate.hits == 4, "requests in flight")
        parts.candidate.stop()
        assert [one.result().status for one in waiting] == [503] * 4
    assert parts.stable.hits == 0
    assert parts.envoy.http().release == "r1"  # what comes later never reaches it
    counters = parts.counters()
    bad = arm(counters, CANDIDATE)
    assert (bad.failed, bad.saved, bad.common, counters.user_errors) == (5, 1, 0, 4)


def test_a_connection_that_breaks_without_an_answer_is_not_tried_again(parts: Rig) -> None:
    parts.apply(10_000)
    parts.candidate.mode = "cut"
    answer = parts.envoy.http()
    assert (answer.status, parts.candidate.hits, parts.stable.hits) == (503, 1, 0)
    counters = parts.counters()
    assert (arm(counters, CANDIDATE).failed, counters.user_errors) == (1, 1)


def test_a_late_attempt_is_tried_on_stable_and_the_first_answer_counts(parts: Rig) -> None:
    parts.apply(10_000, limits=Limits(timeout_s=60.0, attempt_timeout_s=0.3))
    parts.candidate.delay_s, parts.stable.delay_s = 0.6, 40.0
    with parts.envoy.channel() as channel:
        answer = parts.envoy.http()
        assert (answer.status, answer.by) == (200, "candidate") and answer.seconds < 20
        assert grpc_infer(channel)[0] is grpc.StatusCode.OK
    assert parts.stable.hits == 2
    counters = parts.counters()
    bad = arm(counters, CANDIDATE)
    assert (bad.decided, bad.failed, bad.saved, counters.user_errors) == (
        2,
        2,
        2,
        0,
    )  # late is failed, whoever answers then


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_nobody_waits_longer_than_the_whole_time(parts: Rig, protocol: str) -> None:
    parts.apply(10_000, limits=Limits(timeout_s=0.8, attempt_timeout_s=0.6))
    parts.candidate.mode = parts.stable.mode = "hang"
    began = time.monotonic()
    with parts.envoy.channel() as channel:
        if protocol == "http":
            assert parts.envoy.http().status == 504
        else:
            assert grpc_infer(channel)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0.7 < time.monotonic() - began < 10  # both hang for a minute


def test_a_large_body_falls_back_too(parts: Rig) -> None:
    parts.apply(10_000)
    parts.candidate.mode = "error"
    answer = parts.envoy.http(headers={"inference-header-content-length": "2"}, body=b"{}" + b"x" * 5_000_000)
    assert (answer.status, answer.release) == (200, "r1")


def test_when_both_fail_the_user_sees_it_and_it_is_counted(parts: Rig) -> None:
    parts.apply(10_000)
    parts.candidate.mode = parts.stable.mode = "error"
    answer = parts.envoy.http()
    assert (answer.status, answer.release) == (500, "r1")
    counters = parts.counters()
    assert (counters.user_requests, counters.user_errors) == (1, 1)
    assert arm(counters, CANDIDATE).failed == arm(counters, CANDIDATE).common == 1


def test_a_lone_stable_is_never_set_aside(parts: Rig) -> None:
    parts.apply(None, limits=LIMITS)
    parts.stable.mode = "cut"
    for _ in range(10):
        assert parts.envoy.http().status == 503
    parts.stable.mode = "ok"
    assert parts.envoy.http().status == 200


def test_a_candidate_that_lost_its_servers_is_answered_by_stable(parts: Rig) -> None:
    parts.apply(10_000, candidate=Arm("r2", CANDIDATE, ()))
    assert [parts.envoy.http().release for _ in range(5)] == ["r1"] * 5
    counters = parts.counters()
    assert (arm(counters, CANDIDATE).decided, arm(counters, CANDIDATE).routed) == (0, 5)


def test_counts_are_never_older_than_the_flush(parts: Rig) -> None:
    parts.apply(None)
    parts.envoy.http()
    parts.counters()
    reader, seconds = EnvoyCounters(), []

    def is_read(expected: int) -> bool:
        counters = reader.read(gateway="g", admin_url=parts.envoy.admin_url, models=[MODEL], timeout_s=20)[MODEL]
        return counters.user_requests == arm(counters, STABLE).timed == expected

    for expected in range(2, 7):
        parts.envoy.http()
        began = time.monotonic()
        wait_until(lambda expected=expected: is_read(expected), "it is counted")
        seconds.append(time.monotonic() - began)
    assert (
        sorted(seconds)[1] < 10 * FLUSH_S
    )  # Envoy's own interval is 5 s; what else runs here may hold up some of the rounds


def test_a_failure_of_a_new_kind_blinds_nobody_until_it_is_flushed(parts: Rig) -> None:
    """Envoy names a histogram at once and has no values for it until the next flush."""
    reader, unflushed, asked = EnvoyCounters(), 0, 0
    with ThreadPoolExecutor(1) as users:
        for slot in range(40):  # each has histograms of its own; a busy machine may read their first page too late
            parts.apply(10_000, slot=slot)
            for mode in ("error", "unknown", "cut", "lost", "bad_input"):
                parts.candidate.mode, asked = mode, asked + 1
                answer = users.submit(parts.envoy.http)
                until = time.monotonic() + 2 * FLUSH_S
                while not answer.done() or time.monotonic() < until:
                    page = parts.envoy.admin("/stats?histogram_buckets=cumulative")
                    unflushed += sum(line.startswith("sli.") and "(" not in line for line in page.splitlines())
                    reader.read(gateway="g", admin_url=parts.envoy.admin_url, models=[MODEL], timeout_s=20)
            if unflushed:
                break
    assert unflushed, "no page was read in time to show it"
    assert arm(parts.counters(), CANDIDATE).timed == asked * 3 // 5  # an attempt that ends with 4xx has no time


# -- the reader's errors -----------------------------------------------------------------------------------------------


def read_at(port: int) -> GatewayCounters:
    return EnvoyCounters().read(gateway="g", admin_url=f"http://127.0.0.1:{port}", models=[MODEL], timeout_s=0.5)[MODEL]


def test_no_gateway_is_unreachable() -> None:
    with pytest.raises(GatewayError) as caught:
        read_at(free_port())
    assert caught.value.reason == "unreachable"


def test_something_else_at_the_address_is_malformed(parts: Rig) -> None:
    with pytest.raises(GatewayError) as caught:
        read_at(parts.stable.http_port)
    assert caught.value.reason == "malformed"


def test_silence_is_a_timeout(parts: Rig) -> None:
    parts.stable.mode = "hang"
    began = time.monotonic()
    with pytest.raises(GatewayError) as caught:
        read_at(parts.stable.http_port)
    assert caught.value.reason == "timeout"
    assert time.monotonic() - began < 20  # it hangs for a minute


def test_http_and_grpc_may_have_a_port_each(parts: Rig) -> None:
    second = free_port()
    gateway = parts.plane.gateway("gateway-1")
    assert gateway is not None
    parts.plane._gateway = replace(gateway, addresses=(("127.0.0.1", parts.envoy.port), ("127.0.0.1", second)))
    parts.apply(None)
    assert parts.envoy.http().status == 200
    with grpc.insecure_channel(f"127.0.0.1:{second}") as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        assert grpc_infer(channel) == (grpc.StatusCode.OK, "r1", "stable")
    assert parts.counters().user_requests == 2


def test_streams_have_no_route_where_no_release_asks_for_them(parts: Rig) -> None:
    parts.apply(10_000)
    with parts.envoy.channel() as channel:
        requests = iter([service_pb2.ModelInferRequest(model_name=MODEL)])
        answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            requests, metadata=(("x-sluicegate-model", MODEL),)
        )
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "ModelInfer" in str(caught.value.details())
    assert parts.envoy.http(f"/v2/models/{MODEL}/generate_stream").status == 200  # one body, which is read


def test_a_stream_needs_its_models_name_and_reaches_the_release(parts: Rig) -> None:
    arms = {
        name: Arm(release, digest, (backend.endpoint,), UNBOUNDED, has_streams=True)
        for name, release, digest, backend in (
            ("stable", "r1", STABLE, parts.stable),
            ("candidate", "r2", CANDIDATE, parts.candidate),
        )
    }
    parts.apply(10_000, **arms)
    with parts.envoy.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, metadata, expected in (
            (
                "other",
                (("x-sluicegate-model", MODEL),),
                grpc.StatusCode.UNIMPLEMENTED,
            ),  # these backends have no streams
            (MODEL, (), grpc.StatusCode.UNIMPLEMENTED),
            ("other", (), grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.ModelStreamInfer(iter([service_pb2.ModelInferRequest(model_name=name)]), metadata=metadata))
            assert caught.value.code() is expected
    assert arm(parts.counters(), CANDIDATE).timed == 2


def test_as_many_streams_as_come_at_once_are_handed_on_to_stable(parts: Rig) -> None:
    """Envoy would let three be tried again at once, since they are of the other priority."""
    parts.apply(10_000, limits=Limits(timeout_s=60.0, attempt_timeout_s=60.0))
    parts.candidate.stop()
    path = f"/v2/models/{MODEL}/generate_stream"
    with ThreadPoolExecutor(10) as pool:
        with parts.stable.held():  # all are under way together
            asked = [pool.submit(parts.envoy.http, path) for _ in range(10)]
            wait_until(lambda: parts.stable.hits == 10 or any(one.done() for one in asked), "all are at stable")
        answers = [one.result() for one in asked]
    assert [(answer.status, answer.release) for answer in answers] == [(200, "r1")] * 10


def test_a_second_gateway_on_the_same_port_is_refused_and_opens_when_the_port_is_free(
    parts: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SO_REUSEPORT the kernel would let both in, and each would get half of the connections."""
    monkeypatch.setattr("serving.traffic.control_plane.stream.RETRY_S", 0.5)
    parts.apply(0)
    (tmp_path / "other").mkdir()
    with rig(tmp_path / "other", port=parts.envoy.port) as other:
        route = other.route(0)
        other.publish(route)
        refused = wait_until(lambda: [one for _, one in other.plane.acks if one.error], "the refusal")
        assert f"cannot bind '127.0.0.1:{parts.envoy.port}'" in refused[0].error
        assert "gateway_" not in other.envoy.admin("/listeners")
        assert {parts.envoy.http().by for _ in range(30)} == {"stable"}
        assert (parts.stable.hits, other.stable.hits) == (30, 0)
        assert not other.acked(route.generation)
        parts.envoy.stop()
        wait_until(lambda: other.acked(route.generation), "the second gateway on the port that is free now")
        wait_until(other.envoy.is_open, "its routes, which its new listener asks for again", timeout_s=10.0)
        assert other.envoy.http().status == 200


def test_a_listener_that_changes_keeps_its_port_and_its_callers(parts: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.envoy.stop()
    parts.envoy.start(workers=2)
    parts.apply(0)
    traffic = Traffic(parts.envoy, clients=8)
    traffic.go_on()
    monkeypatch.setattr("serving.traffic.control_plane.listener.MAX_BODY_BYTES", 2**20)
    gateway = parts.plane.gateway("gateway-1")
    assert gateway is not None
    # Its stream ends, so it comes again and is given the new listener.
    parts.plane._gateway = replace(gateway, environment="elsewhere")
    changed = wait_until(lambda: int(_stat(parts, "listener_manager.listener_modified")) or None, "the new listener")
    parts.apply(10_000)
    traffic.go_on(100)
    assert changed == 1
    assert int(_stat(parts, "listener_manager.listener_create_failure")) == 0
    assert traffic.stop().keys() == {""}
    assert {parts.envoy.http().release for _ in range(10)} == {"r2"}


def _stat(parts: Rig, name: str) -> str:
    return parts.envoy.admin(f"/stats?filter=^{name}$").rpartition(": ")[2] or "0"
