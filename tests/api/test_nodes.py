"""Nodes and gateways, over REST and by command: who may see and change them; every answer as the schema says."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.core.access import Role
from serving.models import Deployment, Node
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.factories import (
    make_deployment,
    make_node,
    make_release,
    make_server,
    make_user,
)
from tests.rollout_setup import production, serves

pytestmark = pytest.mark.django_db


def test_nodes_are_listed_cordoned_and_let_in_again() -> None:
    make_server(make_deployment(state="ready"))
    root, ana = Client(), Client()
    root.force_login(make_user("root", is_admin=True))
    ana.force_login(make_user("ana", team="search", role=Role.RELEASE_MANAGER))
    kind = "application/json"
    (seen,) = ana.get("/api/v1/nodes").json()["results"]
    assert seen["gpus"] is None and seen["static_server"] is None
    Node.objects.update(facts={"static": {"address": "10.20.0.7:8000:8001", "loads": "request"}})
    assert ana.get("/api/v1/nodes").json()["results"][0]["static_server"] == "10.20.0.7:8000:8001"
    for client, verb, match, status in (
        (ana, "cordon", "*", 403), (ana, "uncordon", '"1"', 403), (root, "uncordon", None, 428), (root, "cordon", "*", 200),
        (root, "uncordon", '"1"', 412), (root, "uncordon", '"2"', 200),
    ):  # fmt: skip
        headers = {"If-Match": match} if match else {}
        answer = client.post(f"/api/v1/nodes/local/{verb}", {"reason": "x"}, content_type=kind, headers=headers)
        assert answer.status_code == status, (verb, match, answer.json())
    assert root.post("/api/v1/nodes/none/cordon", {}, content_type=kind, headers={"If-Match": "*"}).status_code == 404
    assert Client().get("/api/v1/nodes").status_code == 401


def test_whoever_sends_the_digest_of_a_drains_plan_has_nothing_else_done() -> None:
    serves(release := make_release())
    deployment = make_deployment(release, production(), state="ready")
    root, address = Client(headers={"If-Match": "*"}), "/api/v1/nodes/local/drain"
    root.force_login(make_user("root", is_admin=True))

    def post(**body: object) -> tuple[int, dict[str, object]]:
        answer = root.post(address, body, content_type="application/json")
        return answer.status_code, answer.json()

    read = root.get(address, {"deployment": deployment.pk}).json()["plan_digest"]
    assert root.get(address, {"deployment": "x"}).status_code == 404
    make_node("other")
    for more in ({}, {"is_confirmed": True}, {"deployment": deployment.pk}):
        code, told = post(plan_digest=read, **more)
        assert (code, told["code"]) == (409, "plan_changed") and "is started on other" in str(told["detail"])
    code, told = post()
    assert (code, told["code"]) == (422, "not_confirmed") and Node.objects.get(name="local").cordoned_at is None
    assert post(plan_digest=told["plan_digest"])[0] == 200
    assert Deployment.objects.get(node="other").release == release
