"""A real Envoy before several replicas: the load is shared, one that dies costs nobody a request, and they come and go under traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import UNBOUNDED, Rig, Traffic, rig
from tests.support.servers.stub_server import Backend

pytestmark = pytest.mark.real("envoy")
LIMITS = Limits(timeout_s=10.0, attempt_timeout_s=2.0)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


@pytest.fixture
def backends(parts: Rig) -> Iterator[list[Backend]]:
    """Three replicas of r1; the first is the rig's own."""
    more = [Backend(parts.loop, f"r1-{at}").start() for at in range(2)]
    yield [parts.stable, *more]
    for one in more:
        one.stop()


def serve(parts: Rig, backends: list[Backend]) -> None:
    endpoints = tuple(sorted(one.endpoint for one in backends))
    parts.apply(None, stable=Arm("r1", Rig.STABLE, endpoints, UNBOUNDED), limits=LIMITS)


def test_the_load_is_shared_by_all_replicas(parts: Rig, backends: list[Backend]) -> None:
    serve(parts, backends)
    by = Counter(parts.envoy.http().by for _ in range(90))
    assert len(by) == 3 and min(by.values()) >= 10, by


def test_a_dead_replica_costs_nobody_a_request(parts: Rig, backends: list[Backend]) -> None:
    """It refuses connections, as a killed server does, and the control plane has not heard of it yet."""
    serve(parts, backends)
    backends[1].stop()
    traffic = Traffic(parts.envoy)
    traffic.go_on(600)
    assert set(found := traffic.stop()) == {""}, found


def test_a_replica_that_answers_unwell_is_made_up_for_by_another(parts: Rig, backends: list[Backend]) -> None:
    serve(parts, backends)
    backends[1].mode = "unknown"
    traffic = Traffic(parts.envoy)
    traffic.go_on(600)
    assert set(found := traffic.stop()) == {""}, found


def test_replicas_that_come_and_go_lose_no_request(parts: Rig, backends: list[Backend]) -> None:
    serve(parts, backends[:1])
    traffic = Traffic(parts.envoy)
    for here in (backends, backends[1:], backends[:2], backends[2:], backends) * 2:
        serve(parts, here)
        traffic.go_on()
    assert set(found := traffic.stop()) == {""}, found


def test_replicas_that_are_replaced_one_by_one_lose_no_request(parts: Rig, backends: list[Backend]) -> None:
    """As a replacement goes: the new one answers first, then the old one is taken out of the gateway, and is stopped a while later."""
    here = list(backends)
    serve(parts, here)
    traffic, came = Traffic(parts.envoy), []
    for at, old in enumerate(backends):
        came.append(Backend(parts.loop, f"r1-new-{at}").start())
        here.append(came[-1])
        serve(parts, here)
        traffic.go_on()
        here.remove(old)
        serve(parts, here)
        traffic.go_on()
        if old is not parts.stable:  # the rig's own ends with the rig
            old.stop()
        traffic.go_on()
    assert set(found := traffic.stop()) == {""}, found
    assert {parts.envoy.http().by for _ in range(30)} == {f"r1-new-{at}" for at in range(3)}
    for one in came:
        one.stop()
