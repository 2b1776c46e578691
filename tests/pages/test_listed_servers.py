"""The servers that an environment lists: on its page, and in the API as its owner lists and removes one."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.core.access import Actor
from serving.models import Environment, ListedServer, Replica
from serving.targets.actions.lifecycle import ensure_replica, register_node
from tests.support.worlds.factories import RUNTIME, make_environment, make_release, make_user

pytestmark = pytest.mark.django_db
ADDRESS = "/api/v1/environments/production/servers"
TOLD = [{"image": RUNTIME, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {}}]
AGENT = Actor.system("agent")


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(make_user("root", is_admin=True))
    return client


def page(client: Client) -> str:
    with CaptureQueriesContext(connection) as asked:
        answer = client.get("/settings/environments/production/")
    assert answer.status_code == 200 and len(asked) <= 12
    return answer.content.decode()


def test_a_server_is_listed_shown_and_removed(root: Client) -> None:
    make_environment("production")
    said = {"name": "triton-7", "address": "127.0.0.1:8000:8001", "runtime": RUNTIME, "loads": "request"}
    refused = root.post(ADDRESS, said, content_type="application/json")
    assert refused.status_code == 422 and refused.json()["code"] == "environment_not_static"
    environment = root.get("/api/v1/environments/production")
    assert environment.json()["platform"] == "local"
    changed = root.patch(
        "/api/v1/environments/production",
        {"platform": "static"},
        content_type="application/json",
        HTTP_IF_MATCH=environment.headers["ETag"],
    )
    assert changed.json()["platform"] == "static"
    assert "No server is listed, so releases cannot run here" in page(root)

    added = root.post(ADDRESS, said, content_type="application/json")
    assert added.status_code == 201 and (added.json()["state"], added.json()["kind"]) == ("waiting", "")
    assert "No agent has looked at it yet" in page(root)
    listed_at = ListedServer.objects.get().listed_at
    register_node(actor=AGENT, name="triton-7", runtimes=TOLD, facts={"static": {}}, listed_at=listed_at)
    release = make_release()
    ensure_replica(
        actor=AGENT, release=release, environment=Environment.objects.get(),
        reason="a test",
    )  # fmt: skip
    html = page(root)
    assert f"{release.model.slug} {release.name}" in html and "127.0.0.1:8000:8001" in html
    (row,) = root.get(ADDRESS).json()["results"]
    assert row["state"] == "loading" and row["releases"] == [f"{release.model.slug} {release.name}"]

    gone = f"{ADDRESS}/triton-7/remove"
    in_use = root.post(gone, {}, content_type="application/json")
    assert in_use.status_code == 409 and in_use.json()["code"] == "server_in_use"
    Replica.objects.update(state="gone")
    assert root.post(gone, {"reason": "sold"}, content_type="application/json").status_code == 204
    assert root.get(ADDRESS).json()["results"] == []
