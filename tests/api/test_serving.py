"""Reading environments, servers and runtimes over REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.core.access import Role
from accounts.models import Membership, Team, User
from registry.adapters.capability_evidence import capabilities
from registry.models import Release, ServedModel
from serving.models import Environment, Gateway, Node, Replica, Route, Server

pytestmark = pytest.mark.django_db

RUNTIME = {
    "image": f"local/triton-onnx@sha256:{'a' * 64}",
    "server": "triton",
    "backends": ["sluicegate-onnx"],
    "versions": {"triton": "2.51.0"},
}


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create_user("reader", password="a long pass phrase"))
    return client


def belonging_to(team: str) -> User:
    user = User.objects.get(username="reader")
    Membership.objects.create(user=user, team=Team.objects.get(slug=team), role=Role.MODEL_TEAM)
    return user


@pytest.fixture
def deployed() -> Server:
    model = ServedModel.objects.create(slug="sentiment", team=Team.objects.create(slug="text", title="Text"))
    release = Release.objects.create(
        model=model, number=1, state="sealed", manifest="{}", digest=f"sha256:{'1' * 64}", sealed_at=timezone.now()
    )
    production = Environment.objects.get_or_create(slug="production", defaults={"title": "Production"})[0]
    node = Node.objects.create(name="local", runtimes=[RUNTIME], seen_at=timezone.now())
    Gateway.objects.create(
        environment=production,
        name="edge",
        admin_url="http://127.0.0.1:1",
        http_url="http://127.0.0.1:2",
        grpc_address="127.0.0.1:3",
    )
    Route.objects.create(environment=production, model=model, stable=release, changed_at=timezone.now())
    replica = Replica.objects.create(release=release, environment=production, node=node, state="ready")
    Server.objects.create(
        replica=replica, http_port=1, grpc_port=2, metrics_port=3, pid=4, folder="/gone", ended_at=timezone.now()
    )
    return Server.objects.create(
        replica=replica, http_port=5, grpc_port=6, metrics_port=7, pid=8, folder="/here", is_serving=True
    )


def read(client: Client, path: str) -> Any:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_servers_that_are_over_are_not_listed(client: Client, deployed: Server) -> None:
    belonging_to("text")
    (server,) = read(client, "servers")["results"]
    assert (
        server["id"] == deployed.pk
        and server["release"] == "r1"
        and server["model"] == "sentiment"
        and server["is_serving"] is True
    )
    assert "folder" not in server  # a path of the node is nobody's business


def test_an_environment_comes_with_its_gateways_and_routes(client: Client, deployed: Server) -> None:
    belonging_to("text")
    found = read(client, "environments/production")
    assert found["gateways"][0]["name"] == "edge"
    assert found["routes"] == [
        {**found["routes"][0], "model": "sentiment", "stable": "r1", "candidate": None, "candidate_bp": 0}
    ]
    assert found in read(client, "environments")["results"]


def test_what_runs_for_other_teams_is_not_shown(client: Client, deployed: Server) -> None:
    assert read(client, "servers")["results"] == []
    assert read(client, "environments/production")["routes"] == []


def test_an_unknown_environment_names_those_that_are_there(client: Client, deployed: Server) -> None:
    answer = client.get("/api/v1/environments/moon")
    assert answer.status_code == 404 and "production" in answer.content.decode()


def test_runtimes_tell_which_node_has_them(client: Client, deployed: Server) -> None:
    (runtime,) = read(client, "runtimes")["results"]
    assert (
        runtime["image"] == RUNTIME["image"]
        and runtime["node"] == "local"
        and runtime["versions"] == {"triton": "2.51.0"}
    )


def test_each_runtime_has_the_states_of_its_server_and_backends(client: Client, deployed: Server) -> None:
    states = {row["id"]: row["state"] for row in read(client, "capabilities")["results"]}
    runtimes = [{**RUNTIME, "server": "acme", "backends": ["python"]}]
    Node.objects.create(name="own", runtimes=runtimes, seen_at=timezone.now())
    local, own = sorted(read(client, "runtimes")["results"], key=lambda runtime: runtime["node"])
    assert local["states"]["server"] == states["server:triton"]
    assert local["states"]["backends"] == {name: states[f"backend:triton/{name}"] for name in RUNTIME["backends"]}
    assert own["states"] == {"server": "never run", "backends": {"python": "never run"}}


def test_the_table_of_capabilities_is_that_of_the_package(client: Client, db: None) -> None:
    assert read(client, "capabilities")["results"] == capabilities()


@pytest.mark.parametrize("path", ["environments", "environments/production", "servers", "runtimes", "capabilities"])
def test_nobody_reads_without_signing_in(path: str) -> None:
    assert Client().get(f"/api/v1/{path}").status_code in (401, 403)
