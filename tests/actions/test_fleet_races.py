"""Nodes that are shut, emptied or taken off the list as a replica is placed there; a gateway that is registered twice at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from registry.models import Release
from serving.actions.draining import drain_node
from serving.actions.gateways import register_gateway
from serving.actions.nodes import cordon_node
from serving.actions.placing import place_replica
from serving.actions.removing import remove_node
from serving.actions.replacing import replace_replica
from serving.actions.routes import lock_routes
from serving.models import Deployment, Gateway, Node
from tests.factories import events_of, make_admin, make_environment, make_node, make_release
from tests.gateway_rig import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # threads that wait for one another
SYSTEM = Actor.system("test")
#: Unlike `pg_stat_activity` it is read anew within a transaction.
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def behind(first: Callable[[], object], second: Callable[[], object]) -> str:
    """What came of the second, which began when the first was done and before that was committed: `done`, or the code of the refusal."""
    found: list[str] = []
    thread = beside(second, found)
    with transaction.atomic():
        first()
        thread.start()
        wait_until(lambda: found or _waiting(), "the second, or its waiting for a lock", timeout_s=60)
    thread.join(timeout=60)
    return found[0]


def beside(do: Callable[[], object], found: list[str]) -> threading.Thread:
    """A thread, not begun, that puts into `found` what came of it."""

    def run() -> None:
        try:
            do()
            found.append("done")
        except DomainError as error:
            found.append(error.code)
        except OperationalError as error:
            found.append(str(error))
        finally:
            connections["default"].close()

    return threading.Thread(target=run)


@transaction.atomic
def place() -> None:
    environment = make_environment("production")
    lock_routes(environment)
    place_replica(actor=SYSTEM, release=Release.objects.get(), environment=environment, reason="It is wanted.")


def _waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute(_WAITING)
        return int(cursor.fetchone()[0])


@pytest.fixture
def node() -> Node:
    """The only one, heard of long ago, and a release that may be placed there."""
    make_release()
    make_environment("production")
    return make_node("lonely", seen_at=timezone.now() - timedelta(hours=1))


def test_a_node_that_is_given_a_replica_is_not_taken_off_the_list_under_it(node: Node) -> None:
    admin = make_admin()
    assert behind(place, lambda: remove_node(actor=admin, node=node, reason="sold")) == "node_in_use"
    assert Node.objects.get().removed_at is None and Deployment.objects.get().node == node


def test_a_drain_empties_the_node_of_what_was_just_placed_there(node: Node) -> None:
    admin = make_admin()
    assert behind(place, lambda: drain_node(actor=admin, node=node, reason="", is_confirmed=True)) == "done"
    assert Deployment.objects.get().drain_asked_at is not None


def test_a_drain_and_a_replacement_on_its_node_do_not_wait_for_each_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    place()
    found: list[str] = []
    admin = make_admin()
    drain = beside(lambda: drain_node(actor=admin, node=node, reason="", is_confirmed=True), found)

    def place_later(**said: Any) -> Deployment:
        """As the drain waits for the replacement, whose deployment's row is written already."""
        drain.start()
        wait_until(lambda: found or _waiting(), "the drain, or its waiting for a lock", timeout_s=60)
        return place_replica(**said)

    monkeypatch.setattr("serving.actions.replacing.place_replica", place_later)
    replace_replica(actor=SYSTEM, deployment=Deployment.objects.get(), reason="Its disk is old.")
    drain.join(timeout=60)
    assert found == ["done"]
    assert Deployment.objects.count() == 2 and not Deployment.objects.filter(drain_asked_at=None).exists()


def test_nothing_is_placed_on_a_node_that_was_just_shut(node: Node) -> None:
    admin = make_admin()
    assert behind(lambda: cordon_node(actor=admin, node=node, reason="Repair."), place) == "nodes_cordoned"
    assert not Deployment.objects.exists()


def test_a_gateway_that_two_register_at_once_is_told_once() -> None:
    environment = make_environment("production")

    def register() -> None:
        where = {"admin_url": "http://127.0.0.1:1", "http_url": "http://127.0.0.1:2", "grpc_address": "127.0.0.1:3"}
        register_gateway(actor=SYSTEM, environment=environment, name="edge", **where)

    assert behind(register, register) == "done"
    gateway = Gateway.objects.get()
    assert gateway.version == 1 and events_of("gateway", gateway.pk).count() == 1
