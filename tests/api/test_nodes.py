"""Nodes and gateways, over REST and by command: who may see and change them; every answer as the schema says."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.core.access import Role
from serving.models import Deployment, Gateway, Node
from sluicegate.cli import exits, node
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.factories import (
    make_deployment,
    make_environment,
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


def test_the_command_line_prints_the_plan_of_a_drain_and_drains_only_when_told_to(run: Run) -> None:  # noqa: F811
    release = make_release()
    serves(release)
    deployment = make_deployment(release, production(), state="ready")
    make_node("other")
    code, plan = run("admin", "node", "drain", "local")
    assert code == exits.OK and [one["fate"] for one in plan["steps"]] == ["moves"] and plan["is_done"] is False
    assert not Deployment.objects.filter(node="other").exists()
    code, done = run("admin", "node", "drain", "local", "--deployment", str(deployment.pk), "--yes")
    assert code == exits.OK and done["steps"][0]["deployment"] == deployment.pk and done["is_done"] is True
    assert Deployment.objects.get(node="other").release == release
    assert run("mara", "node", "drain", "local", "--yes")[0] == exits.REFUSED
    code, told = run("admin", "node", "drain", "local", "--deployment", "99999")
    assert code == exits.REFUSED and "Nothing like deployment 99999 is on local now" in told["error"]
    for verb in ("cordon", "uncordon", "drain", "remove"):
        code, told = run("admin", "node", verb, "a b")
        assert code == exits.REFUSED and "'a b' is no name of a node" in told["error"], verb


def test_a_drain_is_asked_for_and_does_what_was_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    serves(release := make_release())
    deployment = make_deployment(release, production(), state="ready")
    make_node("other")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    asked: list[str] = []

    def drained(answer: str, *more: str, comes: bool = False) -> int:
        def answered(question: str) -> str:
            asked.append(question)
            if comes:
                make_deployment(make_release(release.model), production(), state="ready")
            return answer

        monkeypatch.setattr("builtins.input", answered)
        return run("admin", "node", "drain", "local", *more, plain=True)[0]

    assert drained("no") == exits.REFUSED and "local is cordoned and emptied. Go on?" in asked[0]
    assert drained("yes", comes=True) == exits.REFUSED  # what was read is not all that would go by then
    assert Node.objects.get(name="local").cordoned_at is None
    assert (
        drained("yes", "--deployment", str(deployment.pk)) == exits.OK and f"Deployment {deployment.pk} is" in asked[-1]
    )
    assert run("admin", "node", "drain", "local", "--deployment", "999999999")[0] == exits.REFUSED
    assert drained("yes") == exits.OK and Node.objects.get(name="local").cordoned_at is not None


def test_a_drain_that_nobody_read_is_done_whatever_comes_meanwhile(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script that empties a dying node."""
    serves(release := make_release())
    make_deployment(release, production(), state="ready")
    agreed = node.is_agreed

    def while_one_comes(*said: Any) -> bool:
        make_node("other")
        return agreed(*said)

    monkeypatch.setattr(node, "is_agreed", while_one_comes)
    code, done = run("admin", "node", "drain", "local", "--yes")
    assert code == exits.OK and [one["fate"] for one in done["steps"]] == ["moves"]


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
