"""Stable's servers die beside a candidate with traffic, behind a real Envoy: who answers, and what is counted for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving.core.request_limits import Limits
from serving.core.routes import Arm
from serving.ports import ArmCounters
from tests.gateway_rig import MODEL, UNBOUNDED, Backend, Rig, Traffic, grpc_infer, rig, wait_until

pytestmark = pytest.mark.real("envoy")
STABLE, CANDIDATE = Rig.STABLE, Rig.CANDIDATE
STREAM = f"/v2/models/{MODEL}/generate_stream"
#: Nothing is late while a test waits.
PATIENT = Limits(50.0, 50.0)


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
    """(whether it was answered well, the release that answered) of so many calls, half of them over gRPC, one after the other."""
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


def noticed(parts: Rig) -> None:
    """Waits until the gateway has seen that no port of stable's is open, over both protocols."""
    wait_until(lambda: {well for well, _ in asked(parts, 8)} == {True}, "requests are answered")


@pytest.mark.parametrize("is_idempotent", [True, False])
@pytest.mark.parametrize("bp", [500, 5000, 9500])
def test_the_candidate_stands_in_for_stables_dead_server_and_that_counts_for_no_release(
    parts: Rig, bp: int, is_idempotent: bool
) -> None:
    parts.apply(bp, is_idempotent=is_idempotent, limits=PATIENT)
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
    # what the split drew for the candidate is its evidence, and the rest is nobody's
    assert (later_stable.decided, later_stable.failed) == (stable.decided, stable.failed)
    assert later_candidate.decided == later_candidate.timed == candidate.decided + drawn


def test_users_lose_little_more_than_what_is_in_flight_at_a_kill(parts: Rig) -> None:
    """A tenth of a second passes until the gateway sees the closed port. What it refuses meanwhile waits as long or longer."""
    parts.apply(5000)
    traffic = Traffic(parts.envoy, 8, pause_s=0.05)
    traffic.go_on(100)
    parts.stable.stop()
    noticed(parts)
    began = len(traffic.calls)
    traffic.go_on(200)
    told = traffic.stop()
    assert not [error for _, _, error in traffic.calls[began + 16 :] if error], told


def test_stable_has_its_share_again_once_it_accepts_connections(parts: Rig) -> None:
    parts.apply(100)
    parts.stable.stop()
    noticed(parts)
    parts.stable.start()
    before = parts.stable.hits
    wait_until(lambda: asked(parts, 8) and parts.stable.hits > before, "stable is asked again")
    assert ("r1" in {release for _, release in asked(parts)}) and all(well for well, _ in asked(parts))


@pytest.mark.parametrize("mode", ["error", "unavailable", "cut", "lost", "full", "bad_input"])
def test_what_a_server_of_stables_has_seen_never_goes_to_the_candidate(parts: Rig, mode: str) -> None:
    """Far more of them in a row than set a server aside beside others."""
    parts.apply(1, limits=PATIENT)
    parts.stable.mode = mode
    asked(parts, 60)
    assert parts.candidate.hits == of(parts)[1].routed
    parts.stable.mode = "ok"
    assert all(well for well, _ in asked(parts))


def test_a_late_request_is_asked_again_of_stable_alone(parts: Rig) -> None:
    parts.apply(1, limits=Limits(1.0, 0.1))
    parts.stable.mode = "hang"
    for _ in range(6):
        parts.envoy.http()
    assert parts.stable.hits >= 6 and parts.candidate.hits == of(parts)[1].routed


def test_a_server_that_is_left_of_stables_has_all_of_its_share(parts: Rig, twin: Backend) -> None:
    both = Arm("r1", STABLE, tuple(sorted((parts.stable.endpoint, twin.endpoint))), UNBOUNDED)
    parts.apply(1, stable=both)
    parts.stable.stop()
    noticed(parts)
    assert all(well for well, _ in asked(parts))
    assert parts.candidate.hits == of(parts)[1].routed
    twin.stop()
    noticed(parts)
    assert asked(parts) == [(True, "r2")] * 40


def test_a_stream_that_no_server_has_seen_goes_to_the_candidate_too(parts: Rig) -> None:
    parts.apply(1)
    assert parts.envoy.http(STREAM).release == "r1"
    parts.stable.stop()
    assert [parts.envoy.http(STREAM).release for _ in range(8)] == ["r2"] * 8
    stable, candidate = of(parts)
    assert (stable.routed + candidate.routed, stable.failed, candidate.failed) == (9, 0, 0)


@pytest.mark.parametrize("bp", [0, None])
def test_a_candidate_without_traffic_stands_in_for_nobody(parts: Rig, bp: int | None) -> None:
    parts.apply(bp)
    parts.stable.stop()
    assert not any(well for well, _ in asked(parts, 8))
    assert parts.candidate.hits == 0


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_the_candidate_has_its_own_bound_on_what_it_does_in_stables_place(parts: Rig, protocol: str) -> None:
    """Of 4 that its server bears, 2 over each protocol; the others are shed."""
    candidate = Arm("r2", CANDIDATE, (parts.candidate.endpoint,), 4)
    parts.apply(1, candidate=candidate, limits=PATIENT)
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
