"""How nodes join, over REST and by command: who may invite, rotate and revoke; the token is shown once and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.core.access import Actor, Role
from serving.actions.deployments import register_node
from serving.actions.joining import digest_of, join_node
from serving.models import NodeInvite
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.factories import make_user

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
