"""Requests that take long, on a real Envoy: what its own timers, a rollback and the end of a release's servers do to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from serving.targets.adapters.linux_connections import open_connections
from serving.traffic.control_plane import listener, request_guard
from serving.traffic.core.request_limits import Limits
from tests.support.rigs.gateway_rig import Rig, grpc_infer, rig, wait_until

pytestmark = pytest.mark.real("envoy")
LONG_S = 4.0
LIMITS = Limits(timeout_s=60.0, attempt_timeout_s=60.0)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def test_a_request_that_came_whole_is_not_bound_by_the_time_in_which_it_must_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_guard, "BODY_WITHIN_S", 1)
    with rig(tmp_path) as parts:
        parts.apply(limits=LIMITS)
        parts.stable.delay_s = LONG_S
        with parts.envoy.channel() as channel:
            assert parts.envoy.http().status == 200 and grpc_infer(channel)[0] is grpc.StatusCode.OK


def test_a_request_that_its_server_works_on_stands_still_for_envoy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why its timer for what stands still has to be longer than any request."""
    monkeypatch.setattr(listener, "UNARY_IDLE_S", 1)
    with rig(tmp_path) as parts:
        parts.apply(limits=LIMITS)
        parts.stable.delay_s = 30.0
        assert parts.envoy.http().status in (408, 504)


def test_a_long_request_on_a_candidate_survives_its_rollback_and_the_release_leaving_the_routes(parts: Rig) -> None:
    """Its connections then end, which is how an agent knows that the server may be ended; those that were idle end at once."""
    parts.apply(10_000, limits=LIMITS)

    def held() -> int | None:
        return open_connections({parts.candidate.http_port, parts.candidate.grpc_port})

    with parts.envoy.channel() as channel, ThreadPoolExecutor(2) as pool:
        assert parts.envoy.http().release == "r2" and grpc_infer(channel)[1] == "r2"
        idle = held()
        assert idle and idle >= 2
        parts.candidate.delay_s = LONG_S
        began, hits = time.monotonic(), parts.candidate.hits
        answers = [pool.submit(parts.envoy.http), pool.submit(grpc_infer, channel)]
        wait_until(lambda: parts.candidate.hits == hits + 2, "both are running")
        parts.apply(0, limits=LIMITS)
        parts.apply(None, limits=LIMITS)
        assert held() or time.monotonic() - began >= LONG_S
        http, over_grpc = (one.result() for one in answers)
        assert (http.status, http.by) == (200, "candidate") and over_grpc[:2] == (grpc.StatusCode.OK, "r2")
        wait_until(lambda: held() == 0, "the gateway lets go of the server")


def test_idle_connections_to_servers_of_a_release_that_leaves_end_at_once(parts: Rig) -> None:
    parts.apply(10_000, limits=LIMITS)
    with parts.envoy.channel() as channel:
        assert parts.envoy.http().release == "r2" and grpc_infer(channel)[1] == "r2"
        parts.apply(None, limits=LIMITS)
        wait_until(
            lambda: open_connections({parts.candidate.http_port, parts.candidate.grpc_port}) == 0, "no connection"
        )
