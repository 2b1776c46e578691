"""Which servers an agent takes away: not the slow ones, the last one of stable later than others, the dead ones at once."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import dataclasses
import errno
import itertools
import os

import pytest
from django.utils import timezone

from ledger.models import Event
from registry.models import Release, ServedModel
from serving.models import Environment, Node, Replica, Route, Server
from serving.ports import InferenceError
from serving.targets import actions, queries
from serving.targets.agent import health_check
from serving.traffic.control_plane import store
from serving.traffic.core.routes import RoutingTable, admit
from tests.support.worlds.replica_setup import (  # noqa: F401
    QUICK,
    SYSTEM,
    Clock,
    S,
    World,
    clock,
    model,
    node,
    production,
    release,
    sealed,
    staging,
    verbs_of,
    world,
)

pytestmark = pytest.mark.django_db
#: Looks as far apart as in use, for waits of minutes by the simulated clock.
IN_USE = dataclasses.replace(
    QUICK,
    **{"probe_every": 5.0, "probe_timeout": 1.5, "patient_timeout": 4.5, "live_timeout": 2.0},
    **{"hung_after": 10.0, "hung_after_last_stable": 30.0},
)


def test_one_odd_failure_is_forgiven_and_two_in_a_row_are_not(world: World) -> None:
    world.until(S.READY)
    world.behaviour.breaks = InferenceError("server_error", "hiccup")
    world.step()
    assert world.state == S.READY
    world.behaviour.breaks = None
    world.step()
    world.behaviour.breaks = InferenceError("server_error", "hiccup")
    world.step()
    assert world.state == S.READY
    world.step()
    assert world.state == S.LOADING


def test_a_frozen_server_is_lost_when_its_window_is_over(
    release: Release, production: Environment, node: Node, clock: Clock
) -> None:
    """However long a request may take."""
    world = World(release, production, clock, IN_USE)
    world.until(S.READY)
    ServedModel.objects.update(objectives={"timeout_s": 600})
    world.behaviour.is_frozen = True
    began = world.clock.now
    world.step()
    world.step()
    assert world.state == S.READY  # two late answers are no proof
    world.until(S.LOADING)
    assert 10 <= world.clock.now - began < 20
    assert "s its process did not answer whether it is live" in world.row.reason
    world.behaviour.is_frozen = False
    assert world.until(S.READY).recoveries == 1


@pytest.mark.parametrize("timeout_s", [12, 120, 600])
def test_a_live_server_that_finishes_nothing_is_lost_when_every_deadline_has_passed(
    release: Release, production: Environment, node: Node, clock: Clock, timeout_s: float
) -> None:
    """By the objectives of now: a change of them needs no new server."""
    world = World(release, production, clock, IN_USE)
    world.until(S.READY)
    ServedModel.objects.update(objectives={"timeout_s": timeout_s})
    world.behaviour.is_hung = True
    began = world.clock.now
    while world.state == S.READY:
        world.step()
    assert timeout_s <= world.clock.now - began < timeout_s + 11
    assert (
        f"s it answered no probe and finished nothing, and a request to it may take {timeout_s} s (" in world.row.reason
    )


@pytest.mark.parametrize("why", ["streams", "no gateway"])
def test_where_a_request_has_no_limit_of_its_own_a_live_server_has_ten_minutes(
    model: ServedModel, production: Environment, staging: Environment, node: Node, clock: Clock, why: str
) -> None:
    """A stream may last for minutes, and a gate asks with the time of its policy."""
    streams = why == "streams"
    release = sealed(model, limits={"streaming": True} if streams else None)
    world = World(release, production if streams else staging, clock, IN_USE)
    world.until(S.READY)
    world.behaviour.is_hung = True
    began = world.clock.now
    while world.state == S.READY:
        world.step()
    assert 600 <= world.clock.now - began < 611


def test_a_server_that_tells_no_sign_of_life_is_lost_by_its_deadlines_alone(
    release: Release, production: Environment, node: Node, clock: Clock
) -> None:
    """It computes on the event loop that would answer; and one long request may stand behind another."""
    world = World(release, production, clock, IN_USE)
    world.launcher.tells_live = False
    world.until(S.READY)
    world.behaviour.is_frozen = True
    began = world.clock.now
    while world.state == S.READY:
        world.step()
    assert 20 <= world.clock.now - began < 31  # twice the installation's 10 s


def test_a_server_that_is_slow_for_everybody_is_left_alone(world: World, release: Release) -> None:
    """Each probe is given up, and finished all the same: slow, not dead."""
    world.until(S.READY)
    world.behaviour.latency_s = 2 * QUICK.probe_timeout
    began = world.clock.now
    while world.clock.now - began < 3 * QUICK.hung_after:
        world.step()
    assert world.state == S.READY and world.row.recoveries == 0


def test_a_server_that_is_slow_because_it_serves_others_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.until(S.READY)
    counts = itertools.count(1)
    world.behaviour.is_hung = True  # for the probes
    monkeypatch.setattr(
        world.server,
        "statistics",
        lambda model: {"model_stats": [{"inference_stats": {"success": {"count": str(next(counts) // 2)}}}]},
    )
    began = world.clock.now
    while world.clock.now - began < 3 * QUICK.hung_after:
        world.step()
    assert world.state == S.READY


def test_a_full_queue_is_load_and_no_error(world: World) -> None:
    world.until(S.READY)
    world.behaviour.breaks = InferenceError("full", "Exceeds maximum queue size")
    for _ in range(4):
        world.reconciler.step()
    assert world.state == S.READY


# an agent that cannot look


NO_FILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("cannot", ["read its record", "open a connection"])
def test_a_server_that_the_agent_cannot_look_at_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, cannot: str
) -> None:
    """For any time, with a single event. The first look after that counts again."""
    world.until(S.READY)

    def no_file(*_: object) -> bool:
        raise NO_FILE

    world.behaviour.breaks = InferenceError("unreachable", "no answer")
    with monkeypatch.context() as short:
        if cannot == "read its record":
            short.setattr(world.launcher, "is_alive", no_file)
        else:
            short.setattr(health_check.socket, "socket", no_file)
        for _ in range(30):
            world.step()
        assert world.state == S.READY and world.row.recoveries == 0 and len(world.launcher.running) == 1
        event = Event.objects.get(verb="server.unseen")
        assert "cannot look at it: Too many open files. It stays as it is" in event.reason
    world.step()
    assert world.state == S.LOADING


# the last server of a stable release


@pytest.fixture
def stable(release: Release, production: Environment, node: Node, clock: Clock) -> World:
    """A ready replica, alone behind a route's stable release."""
    world = World(release, production, clock)
    world.until(S.READY)
    Route.objects.create(environment=production, model=release.model, stable=release, changed_at=timezone.now())
    return world


def test_the_last_server_of_stable_gets_longer_and_its_loss_is_said_loudly(stable: World) -> None:
    stable.behaviour.is_frozen = True
    began = stable.clock.now
    stable.until(S.LOADING)
    assert stable.clock.now - began >= QUICK.hung_after_last_stable
    alarm = f"STABLE {stable.row.release.name} HAS NO SERVER in production; requests fail until it is back. it hung"
    assert stable.row.reason.startswith(alarm)
    assert Event.objects.get(verb="server.lost").reason.startswith(alarm)
    stable.reconciler.step()
    assert stable.state == S.WARMING and "HAS NO SERVER" in stable.row.reason and "hang" not in stable.row.reason
    stable.behaviour.is_frozen = False
    assert "HAS NO SERVER" not in stable.until(S.READY).reason


def test_the_last_server_of_stable_is_dead_at_once_all_the_same(stable: World) -> None:
    stable.server.is_down = True
    stable.reconciler.step()
    assert stable.state == S.LOADING and not queries.current_servers()[0].is_serving
    assert "HAS NO SERVER" in stable.row.reason and "server process ended" in stable.row.reason


@pytest.mark.slow  # many restarts
def test_the_last_server_of_stable_never_fails_for_good(stable: World) -> None:
    """Hangs, loads that fail, and warm-ups that are late, many more times than any other replica gets."""
    pauses = []
    for n in range(len(QUICK.backoff) + 2):
        stable.until(S.READY)
        stable.behaviour.is_frozen = True
        while stable.state == S.READY:
            pauses.append(stable.step())
        stable.behaviour.load_error = "no memory" if n == 1 else ""
        if stable.behaviour.load_error:
            stable.server.is_down = True
            for _ in range(2 * len(QUICK.backoff)):
                pauses.append(stable.reconciler.step())
                assert stable.state == S.LOADING
            assert "HAS NO SERVER" in stable.row.reason and "load_failed: no memory" in stable.row.reason
        stable.behaviour.is_frozen, stable.behaviour.load_error = False, ""
    stable.until(S.READY)
    assert "deployment.failed" not in verbs_of(stable.row)
    assert pauses[-1] == QUICK.backoff_most  # and ever more slowly


def test_stable_with_another_server_is_not_the_last(stable: World, release: Release, production: Environment) -> None:
    row = queries.live_replicas().get(pk=stable.row.pk)
    assert queries.is_last_of_stable(row)
    other = Replica.objects.create(
        release=release, environment=production, node=Node.objects.create(name="two"), state=S.READY, ordinal=1
    )
    server = Server.objects.create(
        replica=other, http_port=5, grpc_port=6, metrics_port=7, pid=8, folder="/b", is_serving=True
    )
    assert not queries.is_last_of_stable(row)
    Server.objects.filter(pk=server.pk).update(is_serving=False)
    assert queries.is_last_of_stable(row)


def test_a_route_works_again_when_its_failed_replica_is_healthy_again(stable: World) -> None:
    def admitted(last: RoutingTable | None) -> RoutingTable:
        loaded = store.load()
        return admit(loaded.tables["production"], last, loaded.known["production"]).table

    def http_ports(table: RoutingTable) -> list[int]:
        return [endpoint.http_port for endpoint in table.models[0].stable.endpoints]

    before = admitted(None)
    assert http_ports(before) == [queries.current_servers()[0].http_port]
    row = queries.live_replicas().get(pk=stable.row.pk)
    for state in (S.LOADING, S.FAILED):
        actions.record_state(actor=SYSTEM, replica=row, to=state, reason="whatever it was")
    stable.reconciler.step()  # it ends the server
    assert queries.current_servers().count() == 0
    meanwhile = admitted(before)
    assert http_ports(meanwhile) == http_ports(before)  # its last address: better than nothing
    start = stable.launcher.start
    stable.launcher.start = lambda spec: dataclasses.replace(start(spec), http_port=77)  # type: ignore[method-assign]
    stable.until(S.READY)
    assert http_ports(admitted(meanwhile)) == [77] and http_ports(admitted(None)) == [77]
