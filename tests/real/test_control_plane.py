"""The control plane's own process with PostgreSQL and Envoy: what happens when it, the database or the table is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest
from django.db import connection
from django.utils import timezone

from accounts.core.access import Actor
from accounts.models import Team
from ledger.core.errors import StateChanged
from ledger.queries import clock
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Environment, Gateway, Node, Replica, RequestExample, Route, RouteAck, Server
from serving.traffic.actions.gateways import drain_gateway, register_gateway, remove_gateway, resume_gateway
from serving.traffic.actions.routes import set_route
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.control_plane.plane import BLIND_AFTER_S, HEARTBEAT_S, POLL_S, RETRY_S
from serving.traffic.queries.routes import Ack, acknowledged
from tests.support.rigs.control_plane_rig import ControlPlaneProcess, Wire
from tests.support.rigs.gateway_rig import MODEL, Backend, Envoy, Loop, Traffic, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real("envoy"), pytest.mark.timeout(300)]
ENGINE = Actor.system("engine")


class World:
    """sentiment r1 (stable) and r2 in production, with servers, a control plane and a gateway."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.backends = {"r1": Backend(self.loop, "r1").start(), "r2": Backend(self.loop, "r2").start()}
        values = connection.settings_dict
        self.wire = Wire(self.loop, values["HOST"] or "127.0.0.1", int(values["PORT"] or 5432))
        self.wire.join()
        self.plane = ControlPlaneProcess(folder, self.wire)
        self.envoy = Envoy(folder, self.plane.port)
        self.environment = Environment.objects.create(slug="production", title="Production")
        self.model = ServedModel.objects.create(slug=MODEL, team=Team.objects.create(slug="nlp", title="NLP"))
        self.r1, self.r2 = self._release(1), self._release(2)
        self.servers = {one.name: self._server(one) for one in (self.r1, self.r2)}
        self.gateway = register_gateway(
            actor=ENGINE,
            environment=self.environment,
            name=self.envoy.name,
            admin_url=self.envoy.admin_url,
            http_url=f"http://127.0.0.1:{self.envoy.port}",
            grpc_address=f"127.0.0.1:{self.envoy.port}",
        )

    def _release(self, number: int) -> Release:
        digest = f"sha256:{str(number) * 64}"
        return Release.objects.create(
            model=self.model, number=number, state=ReleaseState.SEALED, digest=digest, sealed_at=timezone.now()
        )

    def _server(self, release: Release, backend: Backend | None = None) -> Server:
        ordinal = Replica.objects.filter(release=release).count()
        node, _ = Node.objects.get_or_create(name="local")
        replica = Replica.objects.create(
            release=release, environment=self.environment, node=node, state=ReplicaState.READY, ordinal=ordinal
        )
        at = (backend or self.backends[release.name]).endpoint
        return Server.objects.create(
            replica=replica, http_port=at.http_port, grpc_port=at.grpc_port, metrics_port=1, pid=1, folder="f",
            is_serving=True, probed_at=timezone.now(),
        )  # fmt: skip

    def start(self, *, polls: bool = True) -> None:
        self.plane.start(polls=polls)
        self.envoy.start()
        wait_until(self.envoy.is_open, "the gateway's port")

    def decide(self, bp: int) -> Route:
        return set_route(
            actor=ENGINE, environment=self.environment, model=self.model, stable=self.r1, candidate=self.r2,
            candidate_bp=bp, reason="a test",
        )  # fmt: skip

    def apply(self, bp: int) -> Ack:
        route = self.decide(bp)
        return wait_until(lambda: (ack := acknowledged(route)).all_acked and ack, f"{bp} bp acknowledged")

    def releases(self, n: int = 40) -> set[str | None]:
        return {self.envoy.http().release for _ in range(n)}

    def close(self) -> None:
        self.envoy.stop()
        self.envoy.log.close()
        self.plane.end(signal.SIGKILL)
        self.wire.cut()
        for backend in self.backends.values():
            backend.stop()
        self.loop.close()


@pytest.fixture
def world(tmp_path: Path, transactional_db: None) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_decision_is_acknowledged_and_in_force_within_half_a_second(world: World) -> None:
    world.decide(5000)
    world.start(polls=False)
    world.apply(5001)
    traffic = Traffic(world.envoy)
    seconds = []
    for _ in range(6):
        traffic.go_on()
        decided = time.monotonic()
        route = world.decide(0)
        wait_until(lambda route=route: acknowledged(route).all_acked, "acknowledged")
        acked = time.monotonic()
        seconds.append(acked - decided)
        traffic.go_on()
        assert [one for one in traffic.calls if one[1] == "r2" and one[0] > acked] == []
        world.apply(5000)
    outcome = traffic.stop()
    assert set(outcome) == {""}, outcome
    assert min(seconds) < 0.5, seconds  # what another program does to some of the rounds says nothing of these


def test_a_request_that_failed_is_written_down_with_its_server(world: World) -> None:
    world.model.objectives = {"slow": {"threshold_ms": 60_000, "max_frac": 0.01}}
    world.model.save()
    world.decide(5000)
    world.start()
    world.apply(10_000)
    world.backends["r2"].mode = "error"
    assert world.envoy.http(headers={"x-request-id": "mine"}).status == 200  # stable answered
    (one,) = wait_until(lambda: RequestExample.objects.filter(request_id="mine"), "the example is written")
    assert (one.kind, one.release, one.candidate, one.http_status) == ("failed", world.r2, world.r2, 500)
    assert one.server == world.servers["r2"] and one.gateway == world.gateway.name and one.tries == 1


def test_traffic_goes_on_without_a_control_plane_and_a_new_one_catches_up(world: World) -> None:
    world.decide(5000)
    world.start()
    world.apply(5001)
    traffic = Traffic(world.envoy)
    traffic.go_on()
    world.plane.end(signal.SIGKILL)
    killed = time.monotonic()
    missed = world.decide(0)
    traffic.go_on(100)
    assert not acknowledged(missed).all_acked
    without = {release for began, release, _ in traffic.calls if began > killed}
    assert without == {"r1", "r2"}
    world.plane.start()
    wait_until(lambda: acknowledged(missed).all_acked, "the missed route")
    caught_up = time.monotonic()
    traffic.go_on(100)
    assert {release for began, release, _ in traffic.calls if began > caught_up} == {"r1"}
    outcome = traffic.stop()
    assert set(outcome) == {""}, outcome


def test_a_new_control_plane_sends_no_cluster_again_and_heals_lost_words(world: World) -> None:
    """Routes it does send again, for a word counts from the stream that was sent it; users notice nothing of that."""
    world.decide(5000)
    world.start()
    world.apply(5001)
    traffic = Traffic(world.envoy)
    before = json.loads(world.envoy.admin("/config_dump?mask=dynamic_active_clusters"))
    world.plane.end(signal.SIGKILL)
    RouteAck.objects.all().delete()  # as if it had died between the gateway's word and the database
    world.plane.start()
    route = Route.objects.get()
    wait_until(lambda: acknowledged(route).all_acked, "the word is written again")
    assert json.loads(world.envoy.admin("/config_dump?mask=dynamic_active_clusters")) == before
    outcome = traffic.stop()
    assert set(outcome) == {""}, outcome


def test_a_table_that_lost_its_routes_is_refused_also_after_a_restart(world: World) -> None:
    world.decide(0)
    world.start()
    world.apply(5000)
    Route.objects.all().delete()
    wait_until(lambda: world.plane.says("the database has no routes"), "the refusal is logged")
    assert world.releases() == {"r1", "r2"}
    world.plane.end(signal.SIGKILL)
    world.plane.log.write_text("")
    world.plane.start()
    wait_until(lambda: world.plane.says("the database has no routes"), "refused after a restart too")
    wait_until(lambda: world.plane.says("gateway gateway-1 connected"), "the gateway has come again")
    time.sleep(0.5)  # what it would be told, it would have been told at once
    assert world.releases() == {"r1", "r2"}


def test_traffic_and_control_plane_survive_the_loss_of_the_database(world: World) -> None:
    world.decide(0)
    world.start()
    world.apply(5000)
    traffic = Traffic(world.envoy)
    world.wire.cut()
    wait_until(lambda: world.plane.says("the routes cannot be read"), "the loss is logged")
    late = world.decide(0)
    time.sleep(1.0)
    assert world.releases() == {"r1", "r2"}
    assert not acknowledged(late).all_acked
    world.wire.join()
    wait_until(lambda: acknowledged(late).all_acked, "it caught up")
    outcome = traffic.stop()
    assert set(outcome) == {""}, outcome


def test_a_control_plane_that_cannot_read_leaves_its_gateways_to_others_until_it_can(world: World) -> None:
    world.decide(0)
    world.start(polls=False)  # silence is not blindness: nothing was to be read
    world.apply(5000)
    time.sleep(BLIND_AFTER_S + 2 * RETRY_S)
    assert world.plane.is_open()
    world.plane.end(signal.SIGTERM)
    world.plane.start()
    world.apply(5001)
    traffic = Traffic(world.envoy)
    cut = time.monotonic()
    world.wire.cut()
    late = world.decide(0)
    wait_until(lambda: not world.plane.is_open(), "its port is shut")
    assert time.monotonic() - cut > BLIND_AFTER_S - POLL_S
    assert world.releases() == {"r1", "r2"}
    world.wire.join()
    wait_until(lambda: acknowledged(late).all_acked, "its gateways are back")
    assert world.plane.is_open() and world.releases() == {"r1"}
    outcome = traffic.stop()
    assert set(outcome) == {""}, outcome


def test_the_port_stays_shut_until_the_database_was_read(world: World) -> None:
    world.decide(5000)
    world.wire.cut()
    world.plane.start()
    world.envoy.start()
    wait_until(lambda: world.plane.says("the routes cannot be read"), "it says so")
    time.sleep(1.0)
    assert not world.plane.is_open()
    assert not world.envoy.is_open()
    world.wire.join()
    wait_until(world.envoy.is_open, "the gateway opens")
    assert world.releases() == {"r1", "r2"}


def test_a_lost_candidate_is_left_out_and_a_lost_stable_keeps_its_last_address(world: World) -> None:
    world.decide(0)
    world.start()
    world.apply(10_000)
    assert world.releases(5) == {"r2"}
    Server.objects.filter(pk=world.servers["r2"].pk).update(is_serving=False)
    wait_until(lambda: world.envoy.http().release == "r1", "stable answers for the lost candidate")
    Server.objects.filter(pk=world.servers["r1"].pk).update(is_serving=False)
    wait_until(lambda: world.plane.says("stable r1 has no healthy server"), "the loss is logged")
    assert world.releases(10) == {"r1"}
    assert world.apply(0).error == ""
    assert world.releases(10) == {"r1"}


def test_gateways_are_marked_as_seen_only_while_they_are_there(world: World) -> None:
    world.decide(0)
    world.start()
    first = wait_until(lambda: Gateway.objects.get().seen_at, "seen")
    wait_until(lambda: Gateway.objects.get().seen_at > first, "seen again")
    world.envoy.stop()
    wait_until(lambda: world.plane.says("gateway gateway-1 disconnected"), "the end of its stream is noticed")
    time.sleep(0.5)  # a mark that was under way then is written
    last = Gateway.objects.get().seen_at
    time.sleep(HEARTBEAT_S + 0.5)
    assert Gateway.objects.get().seen_at == last


def test_a_gateway_that_follows_asks_no_server_that_is_drained_and_a_frozen_one_does_not_follow(world: World) -> None:
    leaves = world.backends["r1 elsewhere"] = Backend(world.loop, "r1 elsewhere").start()
    other = world._server(world.r1, leaves).replica
    world.start()
    world.apply(0)
    traffic = Traffic(world.envoy)
    wait_until(lambda: leaves.hits, "both servers are asked")

    def write(state: ReplicaState) -> datetime:
        Replica.objects.filter(pk=other.pk).update(state=state)
        return clock.now()

    def follows(since: datetime) -> bool:
        return Gateway.objects.filter(follows_at__gt=since).exists()

    at = write(ReplicaState.DRAINING)
    wait_until(lambda: follows(at), "the gateway follows")
    traffic.go_on()  # what was under way is over
    asked = leaves.hits
    traffic.go_on(200)
    assert leaves.hits == asked and traffic.stop().keys() == {""}

    os.kill(world.envoy.pid or 0, signal.SIGSTOP)
    try:
        at = write(ReplicaState.READY)
        twice = at + timedelta(seconds=2 * HEARTBEAT_S)
        wait_until(lambda: Gateway.objects.filter(seen_at__gt=twice).exists(), "it is marked as seen: it is connected")
        assert not follows(at)
    finally:
        os.kill(world.envoy.pid or 0, signal.SIGCONT)
    wait_until(lambda: follows(at), "it follows again")


def test_a_gateway_that_nobody_registered_gets_nothing(world: World) -> None:
    world.decide(0)
    Gateway.objects.all().delete()
    world.plane.start()
    world.envoy.start()
    wait_until(lambda: world.plane.says("no gateway named 'gateway-1' is registered"), "refused")
    assert not world.envoy.is_open()


def test_counts_are_by_the_releases_digests_and_a_polite_end_is_clean(world: World) -> None:
    world.decide(0)
    world.start()
    world.apply(10_000)
    world.backends["r2"].mode = "error"
    assert world.releases(6) == {"r1"}
    world.envoy.flushed()
    read = EnvoyCounters().read(gateway=world.envoy.name, admin_url=world.envoy.admin_url, models=[MODEL], timeout_s=20)
    counters = read[MODEL]
    drawn = counters.by_release[str(world.r2.digest)]
    assert (drawn.routed, drawn.failed, drawn.saved) == (6, 6, 6)
    assert counters.user_errors == 0
    assert world.plane.end(signal.SIGTERM) == 0
    assert not world.plane.says("Traceback"), world.plane.log.read_text()


def test_a_drained_gateway_says_that_it_is_not_ready_and_answers_every_request(world: World) -> None:
    def is_ready() -> int:
        return httpx.get(f"http://127.0.0.1:{world.envoy.port}/v2/health/ready", timeout=20).status_code

    world.decide(0)
    world.start()
    world.apply(5000)
    assert is_ready() == 200
    traffic = Traffic(world.envoy)
    for _ in range(3):
        drain_gateway(actor=ENGINE, gateway=world.gateway, reason="kernel update", is_confirmed=True)
        wait_until(lambda: is_ready() == 503, "it is not ready")
        traffic.go_on()
        world.apply(0)  # a gateway that is drained still follows its routes, for connections of before too
        acked = time.monotonic()
        traffic.go_on()
        assert [one for one in traffic.calls if one[1] == "r2" and one[0] > acked] == []
        resume_gateway(actor=ENGINE, gateway=world.gateway)
        wait_until(lambda: is_ready() == 200, "it is ready again")
        traffic.go_on()
        world.apply(5000)
    outcome = traffic.stop()
    assert set(outcome) == {""}, outcome
    assert httpx.get(f"http://127.0.0.1:{world.envoy.port}/v2/health/live", timeout=20).status_code == 200


def test_a_gateway_is_removed_once_it_is_silent_and_let_in_no_more(world: World) -> None:
    world.decide(0)
    world.start()
    world.apply(5000)
    with pytest.raises(StateChanged, match="is connected"):
        remove_gateway(actor=ENGINE, gateway=world.gateway, reason="")
    world.envoy.stop()
    Gateway.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    wait_until(lambda: world.plane.says("gateway gateway-1 disconnected"), "the end of its stream is noticed")
    Gateway.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    remove_gateway(actor=ENGINE, gateway=world.gateway, reason="it is gone")
    world.envoy.start()
    wait_until(lambda: world.plane.says("no gateway named 'gateway-1' is registered"), "refused")
    assert not world.envoy.is_open()
