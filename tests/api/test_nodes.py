"""Nodes and gateways, over REST and by command: who may see and change them; every answer as the schema says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.models import Event
from serving.environments.queries.inventory import nodes
from serving.environments.queries.reporting import silent_nodes
from serving.models import ListedServer, Node, Replica
from serving.targets.actions.lifecycle import register_node
from serving.targets.queries.placement import fleet_now
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.support.worlds.factories import (
    make_environment,
    make_node,
    make_replica,
    make_server,
    make_user,
)

pytestmark = pytest.mark.django_db


def test_nodes_are_listed() -> None:
    make_server(make_replica(state="ready"))
    ana = Client()
    ana.force_login(make_user("ana", team="search", role=Role.RELEASE_MANAGER))
    (seen,) = ana.get("/api/v1/nodes").json()["results"]
    assert seen["gpus"] is None and seen["static_server"] is None
    Node.objects.update(facts={"static": {"address": "10.20.0.7:8000:8001", "loads": "request"}})
    assert ana.get("/api/v1/nodes").json()["results"][0]["static_server"] == "10.20.0.7:8000:8001"
    assert Client().get("/api/v1/nodes").status_code == 401


def names() -> list[str]:
    found = [node.name for node in nodes()]
    assert sorted(name for name, _ in silent_nodes()) == sorted(node.name for node in fleet_now().nodes) == found
    return found


def test_a_machine_that_was_silent_for_a_day_and_is_to_run_nothing_leaves_the_list() -> None:
    before = timezone.now() - timedelta(hours=25)
    make_node("local", seen_at=before)  # this machine
    make_node("theirs", seen_at=None)
    ListedServer.objects.create(
        node_id="theirs", environment=make_environment("canary"), host="127.0.0.1", http_port=1, grpc_port=2,
        loads="nothing", runtime="r", listed_by="ana", listed_at=before,
    )  # fmt: skip
    make_node("late", seen_at=timezone.now() - timedelta(hours=23))
    make_node("idle", seen_at=before)
    make_node("never", seen_at=None)
    needed = make_replica(state="ready")
    Replica.objects.filter(pk=needed.pk).update(node=make_node("needed", seen_at=before))
    assert names() == ["late", "local", "needed", "theirs"]
    Replica.objects.filter(pk=needed.pk).update(is_wanted=False)
    assert names() == ["late", "local", "theirs"]
    register_node(actor=Actor.system("agent"), name="idle", runtimes=[], facts={})
    assert names() == ["idle", "late", "local", "theirs"]


def test_the_return_of_a_removed_machine_is_an_event() -> None:
    make_node("cordoned", removed_at=timezone.now())
    for _ in range(2):
        register_node(actor=Actor.system("agent"), name="cordoned", runtimes=[], facts={})
    assert names() == ["cordoned"]
    assert Event.objects.filter(verb="node.registered", subject_id="cordoned").count() == 1
