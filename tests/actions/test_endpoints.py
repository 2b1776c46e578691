"""What a replica and its server publish as an endpoint."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from serving.environments.core.lifecycle import ReplicaState
from serving.models import Endpoint, ListedServer, Replica, Server
from serving.traffic.queries.endpoints import answers, standing_at
from tests.support.worlds.factories import make_environment, make_model, make_node, make_release

pytestmark = pytest.mark.django_db
ADDRESS = {"host": "127.0.0.1", "http_port": 8000, "grpc_port": 8001, "metrics_port": 0, "pid": 1, "folder": "x"}


def serving(number: int, *, ago_s: float = 0.0) -> Server:
    """A server of a model of its own; all of them stand at one address of one node."""
    place = {"environment": make_environment("production"), "node": make_node("theirs")}
    release = make_release(make_model(f"model-{number}"))
    replica = Replica.objects.create(release=release, state=ReplicaState.READY, **place)
    server = Server.objects.create(replica=replica, is_serving=True, **ADDRESS)
    Server.objects.filter(pk=server.pk).update(started_at=timezone.now() - timedelta(seconds=ago_s))
    return server


def serving_models() -> set[str]:
    return set(Endpoint.objects.filter(is_serving=True).values_list("release__model__slug", flat=True))


def test_models_at_one_listed_server_are_all_served() -> None:
    ListedServer.objects.create(
        node=make_node("theirs"), environment=make_environment("production"), host="127.0.0.1", http_port=8000, grpc_port=8001,
        loads="request", runtime="r", listed_by="root", listed_at=timezone.now(),
    )  # fmt: skip
    first, _ = serving(1), serving(2)
    assert serving_models() == {"model-1", "model-2"}
    Replica.objects.filter(pk=first.replica_id).update(reason="It is tried again.")
    assert serving_models() == {"model-1", "model-2"}


def test_an_address_of_a_machine_belongs_to_the_server_that_began_there_last() -> None:
    old, new = serving(1, ago_s=60), serving(2)
    assert serving_models() == {"model-2"}
    Replica.objects.filter(pk=old.replica_id).update(reason="Its server is not heard of.")
    assert serving_models() == {"model-2"}  # what is written of the old one takes nothing back
    assert answers(new.replica.release_id, new.replica.environment_id)


def test_of_a_release_that_is_not_wanted_one_server_is_enough() -> None:
    server = serving(1)
    Replica.objects.filter(pk=server.replica_id).update(is_wanted=False)
    standing = standing_at(server.replica.release_id, server.replica.environment_id)
    assert standing is not None and (standing.is_wanted, standing.wanted) == (False, 1)
