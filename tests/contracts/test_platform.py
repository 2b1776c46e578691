"""The contract of the platforms: `local`, `static`, and one that answers as Kubernetes does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from registry.models import Release
from serving.environments.core.endpoints import EndpointState
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Endpoint, Environment, ListedServer, Node, Replica, Server
from serving.targets.actions.lifecycle import mark_serving
from serving.targets.platforms import PLATFORMS
from serving.targets.port import REASONS, Platform
from serving.traffic.actions.routes import set_route
from serving.traffic.queries.endpoints import answers, names_of, running, standing_at, with_answering
from tests.support.fakes.platform import NO_ROOM, FakeKubernetes
from tests.support.worlds.factories import RUNTIME, make_environment, make_node, make_release, make_server

pytestmark = pytest.mark.django_db
ADMIN = Actor.system("engine")


@dataclass
class Rig:
    """A platform with an environment, and what its agent or its cluster would report."""

    platform: Any
    environment: Environment
    comes_up: Callable[[str, str, int], None]
    releases: list[Release] = field(default_factory=list)

    def release(self, beside: Release | None = None) -> Release:
        """Another release; of the same model as `beside`."""
        self.releases.append(make_release(beside.model if beside else None))
        return self.releases[-1]

    def start(self, release: Release) -> str:
        self.platform.start(release, self.environment, actor=ADMIN, reason="a test")
        return Endpoint.objects.filter(release=release).latest("pk").replica

    def serve(self, release: Release, port: int, host: str = "127.0.0.1") -> str:
        replica = self.start(release)
        self.comes_up(replica, host, port)
        return replica


def _agent_brings_up(handle: str, host: str, port: int) -> None:
    """As `serving.targets.agent.reconciler` writes it down."""
    replica = Replica.objects.get(pk=handle)
    Server.objects.filter(replica=replica, ended_at=None).update(ended_at=timezone.now(), is_serving=False)
    Replica.objects.filter(pk=handle).update(state=ReplicaState.READY)
    server = make_server(replica, host=host, http_port=port, grpc_port=port + 1, is_serving=False)
    mark_serving(actor=Actor.system("agent:local"), server=server, is_serving=True, reason="it answered")


@pytest.fixture(params=["local", "static", "kubernetes"])
def rig(request: pytest.FixtureRequest) -> Rig:
    if request.param == "kubernetes":
        fake = FakeKubernetes()
        return Rig(fake, make_environment("production"), fake.schedule)
    environment = make_environment("production", platform=request.param)
    for name in ("local", "b"):
        node = make_node(name, facts={"static": {"address": "x"}} if request.param == "static" else {})
        if request.param == "static":
            ListedServer.objects.create(
                node=node, environment=environment, host="127.0.0.1", http_port=8000 + Node.objects.count() * 10, loads="request",
                grpc_port=8001 + Node.objects.count() * 10, runtime=RUNTIME, listed_by="test", listed_at=timezone.now(),
            )  # fmt: skip
    return Rig(PLATFORMS[request.param], environment, _agent_brings_up)


def test_it_keeps_to_the_port(rig: Rig) -> None:
    platform: Platform = rig.platform
    verbs = {name for name in vars(Platform) if not name.startswith("_")}
    assert all(callable(getattr(platform, name)) for name in verbs) and len(verbs) <= 11


def test_a_start_waits_for_nothing_and_is_asked_once(rig: Rig) -> None:
    release = rig.release()
    assert standing_at(release.pk, rig.environment.pk) is None
    replica = rig.start(release)
    assert rig.start(release) == replica
    standing = standing_at(release.pk, rig.environment.pk)
    assert standing is not None and standing.is_wanted and standing.count == 0
    assert standing.state not in (EndpointState.READY, EndpointState.FAILED, EndpointState.GONE)
    assert running(release.pk, rig.environment.pk) == [] and not answers(release.pk, rig.environment.pk)


def test_it_stands_as_its_platform_reports(rig: Rig) -> None:
    release = rig.release()
    rig.serve(release, 9000)
    standing = standing_at(release.pk, rig.environment.pk)
    assert standing is not None and (standing.state, standing.count) == (EndpointState.READY, 1)
    assert standing.newest_at is not None and answers(release.pk, rig.environment.pk)
    assert set(names_of(release.pk, rig.environment.pk)) == {("127.0.0.1", 9000), ("127.0.0.1", 9001)}


def test_a_server_that_restarts_in_place_is_the_same_replica(rig: Rig) -> None:
    release = rig.release()
    replica = rig.serve(release, 9000)
    Endpoint.objects.update(since=timezone.now() - timedelta(hours=1))
    rig.comes_up(replica, "127.0.0.1", 9000)
    (one,) = running(release.pk, rig.environment.pk)
    assert one.replica == replica and one.since is not None and timezone.now() - one.since < timedelta(minutes=1)


def test_an_address_may_change(rig: Rig) -> None:
    release = rig.release()
    replica = rig.serve(release, 9000)
    rig.comes_up(replica, "127.0.0.2", 9400)
    (one,) = running(release.pk, rig.environment.pk)
    assert (one.replica, one.host, one.http_port) == (replica, "127.0.0.2", 9400) and one.is_serving


def test_an_address_that_is_reused_serves_one_release(rig: Rig) -> None:
    old = rig.release()
    new = rig.release(beside=old)
    rig.serve(old, 9000)
    replica = rig.start(new)
    Replica.objects.update(node="local")
    rig.comes_up(replica, "127.0.0.1", 9000)
    assert answers(new.pk, rig.environment.pk) and not answers(old.pk, rig.environment.pk)


def _routed(rig: Rig, stable: Release) -> None:
    set_route(actor=ADMIN, environment=rig.environment, model=stable.model, stable=stable, reason="a test")


def test_servers_that_answer_are_counted_for_a_route_while_their_reporter_is_heard_of(rig: Rig) -> None:
    stable = rig.release()
    rig.serve(stable, 9000)
    _routed(rig, stable)
    heard, silent = timezone.now() - timedelta(minutes=1), timezone.now() + timedelta(minutes=1)
    assert [(one.answering, one.is_asleep) for one in with_answering(heard)] == [(1, False)]
    assert [one.answering for one in with_answering(silent)] == [0]


def test_stable_is_not_stopped(rig: Rig) -> None:
    stable = rig.release()
    rig.serve(stable, 9000)
    _routed(rig, stable)
    with pytest.raises(DomainError) as refused:
        rig.platform.stop(stable, rig.environment, actor=ADMIN, reason="a test")
    assert refused.value.code == "still_routed" and answers(stable.pk, rig.environment.pk)


def test_what_is_stopped_leaves(rig: Rig) -> None:
    release = rig.release()
    rig.serve(release, 9000)
    for _ in range(2):
        rig.platform.stop(release, rig.environment, actor=ADMIN, reason="a test")
    standing = standing_at(release.pk, rig.environment.pk)
    assert standing is not None and not standing.is_wanted and standing.count == 0


def test_the_last_that_answers_is_not_set_aside(rig: Rig) -> None:
    release = rig.release()
    replica = rig.serve(release, 9000)
    with pytest.raises(DomainError) as refused:
        rig.platform.set_aside(replica, actor=ADMIN, reason="a test")
    assert refused.value.code == "last_replica" and answers(release.pk, rig.environment.pk)


def test_a_trial_follows_the_replica_from_its_start_to_its_end(rig: Rig) -> None:
    release, other = rig.release(), rig.release()
    assert rig.platform.trial(release, rig.environment) is None
    replica = rig.start(release)
    asked = rig.platform.trial(release, rig.environment)
    assert asked is not None and (asked.replica, asked.is_wanted) == (replica, True)
    assert asked.state not in (EndpointState.READY, EndpointState.GONE) and asked.server() is None
    assert asked.server_before(timezone.now()) is None and asked.machine.name
    rig.comes_up(replica, "127.0.0.1", 9000)
    ready = rig.platform.trial(release, rig.environment)
    assert ready is not None and (ready.replica, ready.state) == (replica, EndpointState.READY)
    server = ready.server()
    assert server is not None and server.started_at <= timezone.now()
    assert ready.server_before(server.started_at - timedelta(seconds=1)) is None
    before = ready.server_before(timezone.now())
    assert before is not None and before.key == server.key
    rig.platform.stop(release, rig.environment, actor=ADMIN, reason="a test")
    ended = rig.platform.trial(release, rig.environment)
    assert ended is not None and ended.replica == replica and not ended.is_wanted
    assert rig.platform.trial(other, rig.environment) is None


def test_of_a_trials_server_an_unknown_fact_is_none(rig: Rig) -> None:
    release = rig.release()
    rig.serve(release, 9000)
    trial = rig.platform.trial(release, rig.environment)
    server = trial.server()
    until_s = time.time()
    readings = server.readings(since_s=until_s - 60, until_s=until_s)
    assert readings in (None, []) and server.gpu_readings() in (None, [])
    assert (server.last_reading(), server.gpus(), server.log(), server.end()) == (None, None, None, None)
    assert trial.log_before(None) is None and dict(trial.timings) == {}
    with contextlib.closing(server.client()) as client:
        assert client.infer


def test_it_forecasts_where_a_release_would_run(rig: Rig) -> None:
    release = rig.release()
    found = rig.platform.forecast(release, rig.environment, replicas=2)
    assert found.machine is not None and found.beside is not None and (found.code, found.replicas) == ("", 2)
    rig.serve(release, 9000)
    there = rig.platform.trial(release, rig.environment)
    again = rig.platform.forecast(release, rig.environment)
    assert again.machine is not None and again.machine.name == there.machine.name


def test_a_refusal_has_a_known_reason_and_leaves_nothing(rig: Rig) -> None:
    Node.objects.all().update(runtimes=[])
    release = rig.release()
    code = ""
    try:
        rig.platform.start(release, rig.environment, actor=ADMIN, reason="a test")
    except DomainError as error:
        code = error.code
    standing = standing_at(release.pk, rig.environment.pk)
    if code:
        assert code in REASONS and standing is None
    else:
        assert standing is not None and (standing.state, standing.why) == (EndpointState.PENDING, NO_ROOM)
        assert rig.platform.why_waiting(release, rig.environment) == NO_ROOM
    with pytest.raises(DomainError) as refused:
        rig.platform.scale(rig.release(), rig.environment, 2, actor=ADMIN, reason="a test")
    assert refused.value.code in REASONS


@pytest.mark.parametrize("column", ["is_leaving", "is_set_aside"])
def test_the_database_keeps_the_last_server_of_stable(rig: Rig, column: str) -> None:
    stable = rig.release()
    rig.serve(stable, 9000)
    _routed(rig, stable)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS serving_endpoint_keeps_stable IMMEDIATE")
    with pytest.raises(IntegrityError, match="last that answers"), transaction.atomic():
        Endpoint.objects.update(**{column: True})
    Endpoint.objects.update(is_serving=False)  # a death is a fact


def test_the_database_gives_no_endpoint_to_another_release(rig: Rig) -> None:
    rig.serve(rig.release(), 9000)
    with pytest.raises(IntegrityError, match="serves another release"), transaction.atomic():
        Endpoint.objects.update(release=rig.release())
