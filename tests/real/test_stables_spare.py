"""Stable's servers die beside a candidate with traffic, behind a real Envoy: the candidate answers, and gets no evidence."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving.ports import ArmCounters
from serving.traffic.control_plane.clusters import clusters, endpoints
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm, ServerAddress
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Backend, Rig, Traffic, grpc_infer, rig, wait_until
from tests.support.rigs.overload_rig import BODY, MESSAGE, Model, manifest
from tests.support.rigs.triton_rig import local_launcher

pytestmark = pytest.mark.real("envoy")
STABLE, CANDIDATE = Rig.STABLE, Rig.CANDIDATE
STREAM = f"/v2/models/{MODEL}/generate_stream"
#: Nothing is late while a test waits.
PATIENT = Limits(50.0, 50.0)
CLIENTS = 8
FAST = Model("3 ms", "0.003", 1)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


@pytest.fixture
def twin(parts: Rig) -> Iterator[Backend]:
    """A second server of stable's."""
    built = Backend(parts.loop, "twin").start()
    yield built
    built.stop()


def asked(parts: Rig, calls: int = 40) -> list[tuple[bool, str | None]]:
    """(is answered well, the answering release) of `calls` calls, half of them over gRPC, one after the other."""
    with parts.envoy.channel() as channel:
        found = []
        for _ in range(calls // 2):
            answer, (code, release, _) = parts.envoy.http(), grpc_infer(channel)
            found += [(answer.status == 200, answer.release), (code is grpc.StatusCode.OK, release)]
        return found


def of(parts: Rig) -> tuple[ArmCounters, ArmCounters]:
    """Counts of stable and of the candidate."""
    by_release = parts.counters().by_release
    return by_release[STABLE], by_release[CANDIDATE]


def apply(parts: Rig, bp: int, **changes: Any) -> None:
    """As `parts.apply`, and the gateway has checked stable's ports once."""
    parts.apply(bp, **changes)

    def is_checked() -> bool:
        lines = parts.envoy.admin("/clusters").splitlines()
        checked = [line for line in lines if "_again::" in line and "::health_flags::" in line]
        return bool(checked) and all(line.endswith("::healthy") for line in checked)

    wait_until(is_checked, "stable's ports are checked")


def noticed(parts: Rig) -> None:
    """Waits until the gateway has seen that no port of stable's is open, over both protocols."""
    wait_until(lambda: {well for well, _ in asked(parts, 8)} == {True}, "requests are answered")


@pytest.mark.parametrize("is_idempotent", [True, False])
@pytest.mark.parametrize("bp", [500, 5000, 9500])
def test_the_candidate_stands_in_for_stables_dead_server_and_that_counts_for_no_release(
    parts: Rig, bp: int, is_idempotent: bool
) -> None:
    apply(parts, bp, is_idempotent=is_idempotent, limits=PATIENT)
    assert all(well for well, _ in asked(parts))
    parts.stable.stop()
    noticed(parts)
    stable, candidate = of(parts)
    hits = parts.candidate.hits
    assert asked(parts) == [(True, "r2")] * 40
    later_stable, later_candidate = of(parts)
    assert parts.candidate.hits == hits + 40
    drawn = later_candidate.routed - candidate.routed
    assert later_stable.routed == stable.routed + 40 - drawn
    # Requests that the split drew for the candidate are its evidence. The others are no evidence.
    assert (later_stable.decided, later_stable.failed) == (stable.decided, stable.failed)
    assert later_candidate.decided == later_candidate.timed == candidate.decided + drawn


def refuses(host: str, port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex((host, port)) == errno.ECONNREFUSED


@pytest.mark.real("triton", "envoy")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bp", [500, 2500, 5000, 9500])
def test_users_lose_what_is_in_flight_as_stables_triton_is_killed(parts: Rig, tmp_path: Path, bp: int) -> None:
    """A killed process takes connections until the kernel has ended it. What came by then was seen, and is stable's failure."""
    (tmp_path / "servers").mkdir()
    with local_launcher(tmp_path, blobs := MemoryBlobs()) as launcher:
        document = manifest(FAST, blobs)
        server = launcher.start(launch_spec(document, launcher.folder_for(1, MODEL, "r1")))
        launcher.await_loaded(server, MODEL, timeout_s=60)
        at = ServerAddress(server.host, server.http_port, server.grpc_port)
        apply(parts, bp, stable=Arm("r1", STABLE, (at,), UNBOUNDED), limits=PATIENT)
        before = of(parts)
        traffic = Traffic(parts.envoy, CLIENTS, pause_s=0.02, body=BODY, message=MESSAGE)
        traffic.go_on(100)
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: all(refuses(at.host, port) for port in (at.http_port, at.grpc_port)), "its ports are closed")
        closed_at = time.monotonic()
        traffic.go_on(400)
        told = traffic.stop()
    failed = [began for began, _, error in traffic.calls if error]
    # How long the kernel takes to end the process is the machine's affair. After that at most the check's time passes.
    assert sum(began > closed_at for began in failed) <= CLIENTS, told
    assert not any(error for _, _, error in traffic.calls[-200:]), told
    stable, candidate = of(parts)
    assert stable.failed - before[0].failed == len(failed) and candidate.failed == before[1].failed
    assert candidate.decided - before[1].decided == candidate.routed - before[1].routed


def test_a_late_request_is_asked_of_stables_other_server(parts: Rig, twin: Backend) -> None:
    both = Arm("r1", STABLE, tuple(sorted((parts.stable.endpoint, twin.endpoint))), UNBOUNDED)
    apply(parts, 1, stable=both, limits=Limits(20.0, 0.1))
    parts.stable.mode = "hang"
    assert all(well for well, _ in asked(parts, 8))
    assert parts.candidate.hits == of(parts)[1].routed


def test_a_weight_changes_no_cluster(parts: Rig) -> None:
    """Envoy makes a changed cluster anew, and its requests in flight leave its bound."""
    alone, shadowing, halfway = (parts.route(bp) for bp in (None, 0, 5000))
    own = clusters(alone)
    assert {name: clusters(halfway)[name] for name in own} == own
    assert clusters(shadowing) == clusters(halfway) and endpoints(shadowing) == endpoints(halfway)


def test_stable_has_its_share_again_once_it_accepts_connections(parts: Rig) -> None:
    apply(parts, 100)
    parts.stable.stop()
    noticed(parts)
    parts.stable.start()
    before = parts.stable.hits
    wait_until(lambda: asked(parts, 8) and parts.stable.hits > before, "stable is asked again")
    assert ("r1" in {release for _, release in asked(parts)}) and all(well for well, _ in asked(parts))


@pytest.mark.parametrize("mode", ["error", "unavailable", "cut", "lost", "full", "bad_input"])
def test_what_a_server_of_stables_has_seen_never_goes_to_the_candidate(parts: Rig, mode: str) -> None:
    """Far more of them in a row than set a server aside beside others."""
    apply(parts, 1, limits=PATIENT)
    parts.stable.mode = mode
    asked(parts, 60)
    assert parts.candidate.hits == of(parts)[1].routed
    parts.stable.mode = "ok"
    assert all(well for well, _ in asked(parts))


def test_a_late_request_is_asked_again_of_stable_alone(parts: Rig) -> None:
    apply(parts, 1, limits=Limits(1.0, 0.1))
    parts.stable.mode = "hang"
    for _ in range(6):
        parts.envoy.http()
    assert parts.stable.hits >= 6 and parts.candidate.hits == of(parts)[1].routed


def test_a_server_that_is_left_of_stables_has_all_of_its_share(parts: Rig, twin: Backend) -> None:
    both = Arm("r1", STABLE, tuple(sorted((parts.stable.endpoint, twin.endpoint))), UNBOUNDED)
    apply(parts, 1, stable=both)
    parts.stable.stop()
    noticed(parts)
    assert all(well for well, _ in asked(parts))
    assert parts.candidate.hits == of(parts)[1].routed
    twin.stop()
    noticed(parts)
    assert asked(parts) == [(True, "r2")] * 40


def test_a_stream_that_no_server_has_seen_goes_to_the_candidate_too(parts: Rig) -> None:
    apply(parts, 1)
    assert parts.envoy.http(STREAM).release == "r1"
    parts.stable.stop()
    assert [parts.envoy.http(STREAM).release for _ in range(8)] == ["r2"] * 8
    stable, candidate = of(parts)
    assert (stable.routed + candidate.routed, stable.failed, candidate.failed) == (9, 0, 0)


@pytest.mark.parametrize("bp", [0, None])
def test_a_candidate_without_traffic_gets_no_request_of_stables(parts: Rig, bp: int | None) -> None:
    """Nor does one whose traffic was taken away, as in a second look; streams included."""
    apply(parts, 5000)
    parts.apply(bp)
    parts.stable.stop()
    assert not any(well for well, _ in asked(parts, 8)) and parts.envoy.http(STREAM).status == 503
    assert parts.candidate.hits == 0


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_the_candidate_has_its_own_bound_on_what_it_does_in_stables_place(parts: Rig, protocol: str) -> None:
    """Of 4 that its server bears, 2 over each protocol; the others are shed."""
    candidate = Arm("r2", CANDIDATE, (parts.candidate.endpoint,), 4)
    apply(parts, 1, candidate=candidate, limits=PATIENT)
    parts.stable.stop()
    noticed(parts)
    before = parts.candidate.hits
    with parts.envoy.channel() as channel, ThreadPoolExecutor(6) as pool:
        ask: Callable[[], Any] = parts.envoy.http if protocol == "HTTP" else partial(grpc_infer, channel)
        with parts.candidate.held():
            users = [pool.submit(ask) for _ in range(6)]
            wait_until(lambda: sum(one.done() for one in users) == 4, "four are refused")
            assert parts.candidate.hits == before + 2
        outcomes = [one.result() for one in users]
    full = [
        one for one in outcomes if (one.status == 429 if protocol == "HTTP" else one[0].name == "RESOURCE_EXHAUSTED")
    ]
    assert len(full) == 4


def test_second_attempts_on_stable_stay_within_a_fifth_of_its_bound(parts: Rig) -> None:
    """A rollout must not double what a hanging server of stable's holds at once."""
    stable, candidate = (
        Arm(name, digest, (backend.endpoint,), 40)
        for name, digest, backend in (("r1", STABLE, parts.stable), ("r2", CANDIDATE, parts.candidate))
    )
    apply(parts, 1, stable=stable, candidate=candidate, limits=Limits(5.0, 0.5))
    parts.stable.mode = "hang"
    with ThreadPoolExecutor(60) as pool:
        jobs = [pool.submit(parts.envoy.http) for _ in range(60)]
        most = 0
        while not all(job.done() for job in jobs):
            told = parts.envoy.admin("/stats?filter=_again.upstream_rq_active").splitlines()
            most = max([most, *(int(line.rpartition(": ")[2]) for line in told if line)])
            time.sleep(0.02)
    assert 0 < most <= 8
