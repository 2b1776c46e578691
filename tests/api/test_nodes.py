"""Nodes and gateways, over REST and by command: who may see and change them; every answer as the schema says."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.core.access import Role
from serving.models import Node
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.support.worlds.factories import (
    make_deployment,
    make_server,
    make_user,
)

pytestmark = pytest.mark.django_db


def test_nodes_are_listed() -> None:
    make_server(make_deployment(state="ready"))
    ana = Client()
    ana.force_login(make_user("ana", team="search", role=Role.RELEASE_MANAGER))
    (seen,) = ana.get("/api/v1/nodes").json()["results"]
    assert seen["gpus"] is None and seen["static_server"] is None
    Node.objects.update(facts={"static": {"address": "10.20.0.7:8000:8001", "loads": "request"}})
    assert ana.get("/api/v1/nodes").json()["results"][0]["static_server"] == "10.20.0.7:8000:8001"
    assert Client().get("/api/v1/nodes").status_code == 401
