"""A real Envoy before three replicas, one of which fails a third of its requests: its counts tell which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollouts.core.odd_replica import ReplicaTally, odd_one_out
from serving.adapters.envoy_hosts import EnvoyHosts
from serving.core.routes import Arm, Limits
from serving.ports import GatewayError
from tests.gateway_rig import MODEL, UNBOUNDED, Rig, rig
from tests.stub_server import Backend

pytestmark = pytest.mark.real("envoy")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def test_the_replica_that_fails_is_told_from_the_others(parts: Rig) -> None:
    more = [Backend(parts.loop, f"r1-{at}").start() for at in range(2)]
    backends = [parts.stable, *more]
    endpoints = tuple(sorted(one.endpoint for one in backends))
    parts.apply(None, stable=Arm("r1", Rig.STABLE, endpoints, UNBOUNDED), limits=Limits(attempt_timeout_s=2.0))
    for at in range(270):
        more[0].mode = "error" if at % 9 < 3 else "ok"  # the gateway takes turns
        parts.envoy.http()
    counts = EnvoyHosts().read_hosts(
        gateway="g", admin_url=parts.envoy.admin_url, timeout_s=20.0, model=MODEL, digest=Rig.STABLE
    )
    tallies = {str(port): ReplicaTally(one.failed, one.attempts) for (_, port), one in counts.items()}
    assert set(tallies) == {str(one.http_port) for one in backends}, counts
    found = odd_one_out(tallies, tolerated=0.002)
    assert found is not None and found.name == str(more[0].http_port), tallies
    assert found.others.bad == 0 and found.own.bad >= 10, tallies
    for one in more:
        one.stop()


def test_a_gateway_that_is_away_is_an_error_of_the_port(parts: Rig) -> None:
    parts.envoy.stop()
    with pytest.raises(GatewayError):
        EnvoyHosts().read_hosts(
            gateway="g", admin_url=parts.envoy.admin_url, timeout_s=5.0, model=MODEL, digest=Rig.STABLE
        )
