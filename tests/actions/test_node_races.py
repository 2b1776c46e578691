"""A node that is shut, emptied or taken off the list at the moment at which a replica is placed there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from serving.actions.draining import drain_node
from serving.actions.nodes import cordon_node
from serving.actions.placing import place_replica
from serving.actions.removing import remove_node
from serving.actions.routes import lock_routes
from serving.models import Deployment, Node
from tests.factories import make_admin, make_environment, make_node, make_release
from tests.gateway_rig import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # threads that wait for one another
SYSTEM = Actor.system("test")
#: Unlike `pg_stat_activity` it is read anew within a transaction.
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def while_one_is_placed(verb: Callable[[], object]) -> str:
    """What came of the verb, which began after a replica was placed on the node and before that was committed: `done`, or the code of the
    refusal."""
    release, environment = make_release(), make_environment("production")
    found: list[str] = []

    def run() -> None:
        try:
            verb()
            found.append("done")
        except DomainError as error:
            found.append(error.code)
        finally:
            connections["default"].close()

    thread = threading.Thread(target=run)
    with transaction.atomic():
        lock_routes(environment)
        placed = place_replica(actor=SYSTEM, release=release, environment=environment, reason="It is wanted.")
        assert placed.node_id == "lonely"
        thread.start()
        wait_until(lambda: found or _waiting(), "the verb, or its waiting for a lock", timeout_s=60)
    thread.join(timeout=60)
    return found[0]


def _waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute(_WAITING)
        return int(cursor.fetchone()[0])


def test_a_node_that_is_given_a_replica_is_not_taken_off_the_list_under_it() -> None:
    node, admin = make_node("lonely", seen_at=timezone.now() - timedelta(hours=1)), make_admin()
    assert while_one_is_placed(lambda: remove_node(actor=admin, node=node, reason="sold")) == "node_in_use"
    assert Node.objects.get().removed_at is None


def test_a_drain_empties_the_node_of_what_was_just_placed_there() -> None:
    node, admin = make_node("lonely"), make_admin()
    verb = lambda: drain_node(actor=admin, node=node, reason="Repair.", is_confirmed=True)  # noqa: E731
    assert while_one_is_placed(verb) == "done"
    assert Deployment.objects.get().drain_asked_at is not None


def test_nothing_is_placed_on_a_node_that_was_just_shut() -> None:
    """The verb came first: who places waits for it, and finds no node."""
    node, admin = make_node("lonely"), make_admin()
    release, environment = make_release(), make_environment("production")
    found: list[str] = []

    def run() -> None:
        try:
            with transaction.atomic():
                lock_routes(environment)
                place_replica(actor=SYSTEM, release=release, environment=environment, reason="It is wanted.")
            found.append("placed")
        except DomainError as error:
            found.append(error.code)
        finally:
            connections["default"].close()

    thread = threading.Thread(target=run)
    with transaction.atomic():
        cordon_node(actor=admin, node=node, reason="Repair.")
        thread.start()
        wait_until(lambda: found or _waiting(), "who places, or its waiting for a lock", timeout_s=60)
    thread.join(timeout=60)
    assert found == ["nodes_cordoned"] and not Deployment.objects.exists()
