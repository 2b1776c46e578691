"""How nodes join, over REST and by command: who may invite, rotate and revoke; the token is shown once and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from accounts.core.access import Actor, Role
from serving.actions.deployments import register_node
from serving.actions.joining import digest_of, join_node
from serving.models import Node, NodeInvite
from sluicegate.cli import exits
from sluicegate.cli.node_joining import joined as words_of
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.factories import make_node, make_user

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:gpu-7")


def signed_in(name: str, **said: Any) -> Client:
    client = Client()
    client.force_login(make_user(name, **said))
    return client


def post(client: Client, path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"If-Match": "*"}
    return client.post(f"/api/v1{path}", body or {}, content_type="application/json", headers=headers)


def joined(token: str, credential: str = "sgn_mine") -> None:
    join_node(actor=AGENT, name="gpu-7", token=token, credential_digest=digest_of(credential))
    register_node(actor=AGENT, name="gpu-7", runtimes=[], facts={}, credential=credential)


def test_invited_joined_rotated_and_revoked() -> None:
    root, mara = signed_in("root", is_admin=True), signed_in("mara", team="search", role=Role.RELEASE_MANAGER)
    made = post(root, "/nodes/gpu-7/invite", {"hours": 2, "reason": "rack 4"})
    assert made.status_code == 201 and made.json()["invited_by"] == "root"
    token = made.json()["token"]
    (row,) = root.get("/api/v1/node-invites").json()["results"]
    assert row["name"] == "gpu-7" and "token" not in row and mara.get("/api/v1/node-invites").status_code == 403
    joined(token)
    assert root.get("/api/v1/node-invites").json()["results"] == []
    (seen,) = mara.get("/api/v1/nodes").json()["results"]
    assert seen["joined_by"] == "root" and seen["joined_at"] and seen["credential_used_at"] and not seen["revoked_at"]
    assert digest_of("sgn_mine") not in str(seen) and digest_of("sgn_mine") not in root.get("/fleet/").content.decode()
    for verb in ("invite", "rotate", "revoke"):
        assert post(mara, f"/nodes/gpu-7/{verb}").status_code == 403
    assert post(root, "/nodes/gpu-7/rotate").json()["rotation_asked_at"]
    gone = post(root, "/nodes/gpu-7/revoke", {"reason": "stolen"}).json()
    assert (gone["state"], gone["revoked_by"], gone["revoke_reason"]) == ("revoked", "root", "stolen")
    refused = post(root, "/nodes/gpu-7/rotate")
    assert refused.status_code == 409 and refused.json()["code"] == "node_not_joined"
    uncordoned = root.post("/api/v1/nodes/gpu-7/uncordon", {}, content_type="application/json",
                           headers={"If-Match": f'"{gone["version"]}"'})  # fmt: skip
    assert uncordoned.status_code == 409 and uncordoned.json()["code"] == "node_revoked"


@pytest.mark.parametrize("hours", [0, 0.001, 169, "a", 1e300])
def test_an_invitation_has_an_end(hours: Any) -> None:
    answer = post(signed_in("root", is_admin=True), "/nodes/gpu-7/invite", {"hours": hours})
    assert answer.status_code == 422 and not NodeInvite.objects.exists()


def test_by_command(run: Run, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "join-token"
    code, made = run("admin", "node", "invite", "gpu-7", "--hours", "2", "--out", str(file))
    assert code == exits.OK and made["token"] is None and file.stat().st_mode & 0o777 == 0o600
    token = file.read_text().strip()
    assert NodeInvite.objects.get().sha256 == digest_of(token)
    printed = run("admin", "node", "invite", "gpu-8")[1]["token"]
    assert NodeInvite.objects.get(name="gpu-8").sha256 == digest_of(printed)
    assert run("mara", "node", "invite", "gpu-9")[0] == exits.REFUSED
    joined(token)
    make_node("plain")
    assert [words_of(row) for row in run("admin", "node", "list")[1]] == ["invited by admin", "without a token"]
    assert run("admin", "node", "rotate", "plain")[0] == exits.REFUSED
    assert run("admin", "node", "rotate", "gpu-7")[0] == exits.OK and Node.objects.get(name="gpu-7").rotation_asked_at
    code, told = run("admin", "node", "revoke", "gpu-7")
    assert (code, told["node"], told["is_done"]) == (exits.OK, "gpu-7", False) and "is refused" in told["says"][0]
    assert Node.objects.get(name="gpu-7").revoked_at is None
    code, _ = run("admin", "node", "revoke", "gpu-99")
    assert code == exits.REFUSED  # also where nothing is done yet: there is no such node
    done = run("admin", "node", "revoke", "gpu-7", "--yes", "--reason", "x")[1]
    assert (done["state"], done["is_done"]) == ("revoked", True)
    assert words_of(run("admin", "node", "list")[1][0]) == "revoked by admin"


def test_a_token_is_made_only_where_it_can_be_written_down(run: Run, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "join-token"
    for bad in (file, tmp_path / "nowhere" / "join-token"):
        file.write_text("of somebody else")
        assert run("admin", "node", "invite", "gpu-7", "--out", str(bad))[0] == exits.REFUSED
        assert not NodeInvite.objects.exists() and file.read_text() == "of somebody else"
    file.unlink()
    assert run("mara", "node", "invite", "gpu-7", "--out", str(file))[0] == exits.REFUSED and not file.exists()
    assert run("admin", "node", "invite", "gpu-7", "--out", str(file))[0] == exits.OK
