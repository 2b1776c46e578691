"""What meets on the fleet: servers that end as replicas are let go, and a gateway that is registered twice at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor
from registry.models import Release
from rollouts.actions.retiring import restore_environment
from serving.environments.actions.locks import lock_routes
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Environment, Gateway, Node, Replica, Server
from serving.targets.actions.lifecycle import (
    end_server,
    mark_serving,
    record_probe,
    record_state,
    release_replica,
)
from serving.targets.actions.placing import place_replica
from serving.targets.actions.replacing import set_aside_replica
from serving.targets.actions.replicas import continue_placing
from serving.traffic.actions.gateways import register_gateway
from tests.support.worlds.factories import (
    events_of,
    make_admin,
    make_environment,
    make_node,
    make_release,
    make_replica,
    make_server,
)
from tests.support.worlds.lock_races import Meeting, behind
from tests.support.worlds.rollout_setup import serves

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # threads that wait for one another
SYSTEM = Actor.system("test")


@transaction.atomic
def place() -> None:
    environment = make_environment("production")
    lock_routes(environment)
    place_replica(actor=SYSTEM, release=Release.objects.get(), environment=environment, reason="It is wanted.")


@pytest.fixture
def node() -> Node:
    """The only one, heard of long ago, and a release that may be placed there."""
    make_release()
    make_environment("production")
    return make_node("lonely", seen_at=timezone.now() - timedelta(hours=1))


def test_a_gateway_that_two_register_at_once_is_told_once() -> None:
    environment = make_environment("production")

    def register() -> None:
        where = {"admin_url": "http://127.0.0.1:1", "http_url": "http://127.0.0.1:2", "grpc_address": "127.0.0.1:3"}
        register_gateway(actor=SYSTEM, environment=environment, name="edge", **where)

    assert behind(register, register) == "done"
    gateway = Gateway.objects.get()
    assert gateway.version == 1 and events_of("gateway", gateway.pk).count() == 1


def replicas(node: Node, *ordinals: int) -> None:
    """Those of the release that answer."""
    where = {"release": Release.objects.get(), "environment": make_environment("production"), "node": node}
    for ordinal in ordinals:
        make_server(Replica.objects.create(**where, state="ready", ordinal=ordinal))


@pytest.mark.parametrize("how", ["warm", "probed"])
def test_a_server_that_answers_as_its_replica_is_set_aside_gets_no_traffic(node: Node, how: str) -> None:
    """Its agent had looked at the replica before it was set aside, and waited for the server's row alone."""
    here = make_node()
    replicas(here, 0, 1)
    server = Server.objects.order_by("pk")[0]
    Server.objects.filter(pk=server.pk).update(is_serving=False)
    server.refresh_from_db()

    def answers() -> None:
        if how == "warm":
            mark_serving(actor=SYSTEM, server=server, is_serving=True, reason="it answered its warm-up requests")
        else:
            record_probe(actor=SYSTEM, server=server)

    aside = server.replica
    assert behind(lambda: set_aside_replica(actor=SYSTEM, replica=aside, reason="It fails."), answers) == "done"
    server.refresh_from_db()
    assert Replica.objects.get(pk=aside.pk).is_set_aside and not server.is_serving
    assert not events_of("server", server.pk).filter(verb="server.recovered").exists()


def leaves(said: dict[Any, Any]) -> None:
    """As the replica's agent does."""
    one = Replica.objects.get(pk=said["replica"].pk)
    record_state(actor=SYSTEM, replica=one, to=ReplicaState.DRAINING, reason="It is over.")


def ends(said: dict[Any, Any]) -> None:
    """As the server's agent does."""
    end_server(actor=SYSTEM, server=said["server"], reason="It is over.")


def test_who_lets_go_of_several_and_their_agent_do_not_wait_for_each_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas(make_node(), 0, 1, 2)

    meeting = Meeting(monkeypatch, "serving.targets.actions.replicas.drain_replica", leaves)
    assert continue_placing(actor=SYSTEM) == []
    assert meeting.outcome() == ["state_changed"] and Replica.objects.filter(is_wanted=True).count() == 1


def test_who_lets_a_release_go_and_its_agent_do_not_wait_for_each_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas(make_node(), 0, 1)

    meeting = Meeting(monkeypatch, "serving.targets.actions.lifecycle.drain_replica", leaves)
    with transaction.atomic():  # as what takes a rollout back, or ends its undo window
        where = {"release": Release.objects.get(), "environment": make_environment("production")}
        release_replica(actor=SYSTEM, reason="It is over.", **where)
    assert meeting.outcome() == ["state_changed"] and not Replica.objects.filter(is_wanted=True).exists()


def test_who_brings_an_environment_back_and_an_agent_do_not_wait_for_each_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, admin = make_environment("production"), make_admin()
    releases = [Release.objects.get(), make_release()]
    for release in releases:
        serves(release)
        make_replica(release, environment, state="failed", is_wanted=False)
    Environment.objects.update(retired_at=timezone.now())

    def gives_up(said: Any) -> object:
        one = Replica.objects.get(release=said["release"])
        return record_state(actor=SYSTEM, replica=one, to=ReplicaState.GONE, reason="It is over.")

    meeting = Meeting(monkeypatch, "serving.targets.local.ensure_replica", gives_up)
    restore_environment(actor=admin, environment=environment)
    assert meeting.outcome() == ["state_changed"]
    assert set(Replica.objects.values_list("state", flat=True)) == {"fetching"}
