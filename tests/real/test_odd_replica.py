"""A real Envoy before three replicas, one of which fails a third of its requests: its counts tell which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollouts.core.odd_replica import ReplicaTally, odd_one_out
from serving.ports import GatewayError, HostCounts
from serving.traffic.adapters.envoy_admin import EnvoyAdmin
from serving.traffic.adapters.envoy_hosts import EnvoyHosts
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm, digest12
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Rig, grpc_infer, rig, wait_until
from tests.support.servers.stub_server import Backend

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
    counts = counts_of(parts)
    tallies = {str(port): ReplicaTally(one.failed, one.attempts) for (_, port), one in counts.items()}
    assert set(tallies) == {str(one.http_port) for one in backends}, counts
    found = odd_one_out(tallies, tolerated=0.002)
    assert found is not None and found.name == str(more[0].http_port), tallies
    assert found.others.bad == 0 and found.own.bad >= 10, tallies
    for one in more:
        one.stop()


def counts_of(parts: Rig) -> dict[tuple[str, int], HostCounts]:
    return EnvoyHosts().read_hosts(
        gateway="g", admin_url=parts.envoy.admin_url, timeout_s=20.0, model=MODEL, digest=Rig.STABLE
    )


def test_a_gateway_is_asked_for_the_clusters_of_the_release_alone(parts: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.apply(500, limits=Limits(attempt_timeout_s=2.0))
    pages = list[str]()
    get = EnvoyAdmin.get

    def noted(self: EnvoyAdmin, path: str, deadline: float) -> str:
        pages.append(get(self, path, deadline))
        return pages[-1]

    monkeypatch.setattr(EnvoyAdmin, "get", noted)
    counts_of(parts)
    (page,) = pages
    named = {one["name"] for one in json.loads(page)["cluster_statuses"]}
    assert {f"{MODEL}_{digest12(Rig.STABLE)}_{protocol}" for protocol in ("http", "grpc")} == named


def test_one_that_is_gone_has_failed_what_found_nobody_there(parts: Rig) -> None:
    gone = Backend(parts.loop, "r1-gone").start()
    endpoints = tuple(sorted((parts.stable.endpoint, gone.endpoint)))
    parts.apply(
        None, stable=Arm("r1", Rig.STABLE, endpoints, UNBOUNDED), limits=Limits(timeout_s=60.0, attempt_timeout_s=60.0)
    )
    with parts.envoy.channel() as channel:
        for _ in range(20):
            parts.envoy.http()
            grpc_infer(channel)
        gone.stop()
        for _ in range(20):
            parts.envoy.http()
            grpc_infer(channel)
    counts = counts_of(parts)
    for port in (gone.http_port, gone.grpc_port):
        found = counts["127.0.0.1", port]
        assert found.failed >= found.unreached >= 4 and found.attempts > found.failed, counts
    for port in (parts.stable.http_port, parts.stable.grpc_port):
        assert counts["127.0.0.1", port].failed == counts["127.0.0.1", port].unreached == 0, counts


def test_what_the_gateway_sheds_was_not_unreached(parts: Rig) -> None:
    parts.apply(
        None,
        stable=Arm("r1", Rig.STABLE, (parts.stable.endpoint,), 1),
        limits=Limits(timeout_s=60.0, attempt_timeout_s=60.0),
    )
    with ThreadPoolExecutor(6) as callers:
        with parts.stable.held():
            asked = [callers.submit(parts.envoy.http) for _ in range(6)]
            wait_until(lambda: sum(one.done() for one in asked) == 5, "all but one are refused")
        assert sorted(one.result().status for one in asked) == [200, *[429] * 5]
    found = counts_of(parts)["127.0.0.1", parts.stable.http_port]
    assert (found.attempts, found.failed, found.unreached) == (1, 0, 0)


def test_a_gateway_that_is_away_is_an_error_of_the_port(parts: Rig) -> None:
    parts.envoy.stop()
    with pytest.raises(GatewayError):
        EnvoyHosts().read_hosts(
            gateway="g", admin_url=parts.envoy.admin_url, timeout_s=5.0, model=MODEL, digest=Rig.STABLE
        )
