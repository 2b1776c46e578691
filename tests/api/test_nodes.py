"""Nodes over REST: listed for whoever signed in, cordoned by administrators alone; every answer as the schema says."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.core.access import Role
from tests.factories import make_deployment, make_server, make_user

pytestmark = pytest.mark.django_db


def test_nodes_are_listed_cordoned_and_let_in_again() -> None:
    make_server(make_deployment(state="ready"))
    root, ana = Client(), Client()
    root.force_login(make_user("root", is_admin=True))
    ana.force_login(make_user("ana", team="search", role=Role.RELEASE_MANAGER))
    kind = "application/json"
    assert ana.get("/api/v1/nodes").json()["results"][0]["gpus"] is None
    for client, verb, match, status in (
        (ana, "cordon", "*", 403), (ana, "uncordon", '"1"', 403), (root, "uncordon", None, 428), (root, "cordon", "*", 200),
        (root, "uncordon", '"1"', 412), (root, "uncordon", '"2"', 200),
    ):  # fmt: skip
        headers = {"If-Match": match} if match else {}
        answer = client.post(f"/api/v1/nodes/local/{verb}", {"reason": "x"}, content_type=kind, headers=headers)
        assert answer.status_code == status, (verb, match, answer.json())
    assert root.post("/api/v1/nodes/none/cordon", {}, content_type=kind, headers={"If-Match": "*"}).status_code == 404
    assert Client().get("/api/v1/nodes").status_code == 401
