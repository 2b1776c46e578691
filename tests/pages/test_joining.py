"""How nodes join, on the Fleet page."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.core.access import Actor
from serving.actions.deployments import register_node
from serving.actions.joining import digest_of, join_node
from serving.models import Node, NodeInvite
from tests.factories import make_node, make_user

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"
AGENT = Actor.system("agent:gpu-7")


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(make_user("root", is_admin=True))
    return client


def page(client: Client) -> str:
    return client.get(reverse("fleet")).content.decode()


def test_the_token_is_shown_once_and_kept_by_no_browser(root: Client) -> None:
    answer = root.post(reverse("fleet_invite"), {"name": "gpu-7", "hours": "24", "reason": HOSTILE})
    html = answer.content.decode()
    (token,) = [one for one in html.replace("<", " ").replace(">", " ").split() if one.startswith("sgj_")]
    assert NodeInvite.objects.get().sha256 == digest_of(token) and "no-store" in answer["Cache-Control"]
    assert "both the file and the variable may go" in html  # one that names no file is refused at the start
    assert "gpu-7, invited by root" in (fleet := page(root)) and token not in fleet
    join_node(actor=AGENT, name="gpu-7", token=token, credential_digest=digest_of("sgn_mine"))
    register_node(actor=AGENT, name="gpu-7", runtimes=[], facts={}, credential="sgn_mine")
    fleet = page(root)
    assert (
        "nobody has joined yet" not in fleet
        and "invited by root" in fleet
        and "Rotate the credential of gpu-7" in fleet
    )


@pytest.mark.parametrize(
    ("name", "hours"), [("a b", "1"), ("", "1"), (HOSTILE, "1"), ("a", "0"), ("a", "x"), ("a", "999")]
)
def test_what_cannot_be_invited_is_refused_and_the_form_keeps_what_was_typed(
    root: Client, name: str, hours: str
) -> None:
    answer = root.post(reverse("fleet_invite"), {"name": name, "hours": hours})
    html = answer.content.decode()
    assert answer.status_code == 422 and not NodeInvite.objects.exists() and HOSTILE not in html


def test_rotated_and_revoked_from_the_page(root: Client) -> None:
    node = make_node("gpu-7", credential=digest_of("x"))
    rotate, revoke, uncordon = (reverse("fleet_act", args=["gpu-7", verb]) for verb in ("rotate", "revoke", "uncordon"))
    assert root.post(rotate, {"version": "9"}).status_code == 412
    assert root.post(rotate, {"version": "1"}).status_code == 302
    assert "its agent takes another when it is heard of" in page(root)
    assert root.post(revoke, {"reason": HOSTILE}).status_code == 302  # what shuts asks for no version
    node.refresh_from_db()
    assert node.revoked_by == "root" and node.credential == ""
    html = page(root)
    assert "its agent is refused" in html and "may say that it is" not in html
    assert "revoked</span> by root" in html and HOSTILE not in html and uncordon not in html and revoke not in html
    assert "gpu-7" in root.get(reverse("fleet"), {"state": "revoked"}).content.decode()


def test_others_see_how_a_node_joined_and_do_nothing() -> None:
    make_node("gpu-7")
    ann = Client()
    ann.force_login(make_user("ann", team="search"))
    html = page(ann)
    assert "without a token" in html and "Invite a node" not in html and "Revoke" not in html
    assert ann.post(reverse("fleet_invite"), {"name": "mine"}).status_code == 403
    assert ann.post(reverse("fleet_act", args=["gpu-7", "revoke"])).status_code == 403
    assert Node.objects.get().revoked_at is None and not NodeInvite.objects.exists()
