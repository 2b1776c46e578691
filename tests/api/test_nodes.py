"""Nodes and gateways, over REST and by command: who may see and change them; every answer as the schema says."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from accounts.core.access import Role
from serving.models import Gateway, Node
from sluicegate.cli import exits
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.factories import (
    make_deployment,
    make_environment,
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


def test_the_command_line_registers_drains_and_removes_gateways(run: Run, tmp_path: Path) -> None:  # noqa: F811
    make_environment("production")
    where = ("--environment", "production", "--http-url", "http://127.0.0.1:80", "--grpc-address", "127.0.0.1:81")
    file = tmp_path / "envoy.json"
    code, row = run("admin", "gateway", "add", "eu-1", *where, "--relay", "unix:/run/relay.sock", "--out", str(file))
    assert code == exits.OK and row["state"] == "never_seen"
    assert json.loads(file.read_text()) == row["envoy"] and row["envoy"]["node"]["id"] == "eu-1"
    assert run("admin", "gateway", "add", "eu-1", *where, "--relay", "10.0.0.1:1")[0] == exits.REFUSED
    for bad in (tmp_path, tmp_path / "nowhere" / "envoy.json"):
        assert run("admin", "gateway", "add", "eu-2", *where, "--out", str(bad))[0] == exits.REFUSED
    assert not Gateway.objects.filter(name="eu-2").exists()  # it is not registered without a configuration
    Gateway.objects.update(seen_at=timezone.now() + timedelta(hours=1))
    code, told = run("admin", "gateway", "drain", "eu-1")  # the only one
    assert code == exits.REFUSED and "sluicegate gateway drain eu-1 --yes" in told["error"]
    assert run("mara", "gateway", "drain", "eu-1", "--yes")[0] == exits.REFUSED
    assert run("admin", "gateway", "drain", "eu-1", "--yes")[1]["state"] == "drained"
    assert run("mara", "gateway", "list")[1][0]["state"] == "drained"
    assert run("admin", "gateway", "resume", "eu-1")[1]["state"] == "ready"
    assert run("admin", "gateway", "remove", "eu-1")[0] == exits.REFUSED
    Gateway.objects.update(seen_at=None)
    assert run("admin", "gateway", "remove", "eu-1")[0] == exits.OK and not Gateway.objects.exists()
