"""What the fleet tells of each server: whether it runs what was signed, and how much memory it holds beside what is declared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from accounts.core.access import Actor, Role
from registry import actions
from registry.core.oms import SIGNATURE_TYPE
from registry.models import Attestation, Release
from registry.queries.signature_state import wrong_signatures
from serving.models import Server
from serving.targets.agent.node_agent import Agent
from serving.targets.queries.fleet import attested
from tests.pages.markup import squeezed
from tests.pages.test_model_tabs import signed_in
from tests.support.worlds.factories import (
    make_environment,
    make_release,
    make_replica,
    make_server,
    make_team,
    make_user,
)
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import draft_with, served_model

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("tests")


@pytest.fixture
def release() -> Release:
    """Sealed and signed."""
    make_team("vision")
    found = actions.seal(actor=SYSTEM, release=draft_with(SYSTEM, served_model(SYSTEM), onnx_file("one")))
    found.model.refresh_from_db()
    return found


def server_for(release: Release, **over: Any) -> Server:
    replica = make_replica(release, make_environment("production"), state="ready")
    return make_server(replica, **{"digest": release.digest, **over})


def told(release: Release) -> dict[str, Any]:
    client = signed_in(make_user(team=release.model.team, role=Role.VIEWER))
    (node,) = client.get("/api/v1/nodes").json()["results"]
    found: dict[str, Any] = node["replicas"][0]
    return found


def test_a_server_of_a_signed_release_is_attested_until_its_files_change(release: Release) -> None:
    server = server_for(release)
    assert told(release)["attested"] == "attested"
    page = squeezed(signed_in(make_user(is_admin=True)).get(reverse("fleet")).content.decode())
    assert "</svg> attested</span>" in page
    Server.objects.filter(pk=server.pk).update(drift=[{"path": "1/model.onnx", "expected": "a", "found": "b"}])
    found = told(release)
    assert found["attested"] == "wrong" and "no longer those" in found["attested_why"]
    page = squeezed(signed_in(make_user(is_admin=True)).get(reverse("fleet")).content.decode())
    assert "does not match the signature" in page


@pytest.mark.parametrize(
    ("digest", "wrong", "state", "says"),
    [
        ("", "", "unknown", "before agents wrote down"),
        ("sha256:0", "", "wrong", "verified against sha256:0"),
        (None, None, "unknown", "nobody signed"),
        (None, "The key is not known.", "wrong", "The key is not known."),
        (None, "", "attested", "a key of this installation signed"),
    ],
)
def test_every_way_in_which_it_is_not(digest: str | None, wrong: str | None, state: str, says: str) -> None:
    release = make_release()
    server = server_for(release, **({} if digest is None else {"digest": digest}))
    found, why = attested(server, release, wrong)
    assert found == state and says in why
    assert attested(None, release, wrong) == ("unknown", "No server runs.")


def test_signatures_are_checked_and_found_again(release: Release, django_assert_num_queries: Any) -> None:
    unsigned = make_release(release.model)
    assert wrong_signatures([release, unsigned]) == {release.pk: ""}
    with django_assert_num_queries(1):
        assert wrong_signatures([release]) == {release.pk: ""}
    good = Attestation.objects.filter(release=release).latest("pk")
    other = actions.seal(actor=SYSTEM, release=draft_with(SYSTEM, release.model, onnx_file("two")))
    signature = other.attestations.get(predicate_type=SIGNATURE_TYPE)
    Attestation.objects.create(
        release=release, predicate_type=signature.predicate_type, about="sha256:x", bundle=signature.bundle,
        key_id=signature.key_id,
    )  # fmt: skip
    assert Attestation.objects.latest("pk").pk > good.pk
    assert "and this release is" in wrong_signatures([release])[release.pk]  # that of another release, put in its place


def test_the_agent_measures_what_its_servers_hold_and_the_rest_is_unknown(release: Release, tmp_path: Path) -> None:
    ours, gone = server_for(release, pid=os.getpid()), server_for(make_release(release.model), pid=2**22 + 1)
    assert told(release)["measured_memory_mib"] is None
    launcher: Any = None
    Agent(node="local", servers=tmp_path, launcher=launcher, connect=launcher)._measure()
    ours.refresh_from_db()
    gone.refresh_from_db()
    assert ours.memory_bytes is not None and ours.memory_bytes > 10 << 20 and ours.memory_at is not None
    assert gone.memory_bytes is None
    page = squeezed(signed_in(make_user(is_admin=True)).get(reverse("fleet")).content.decode())
    assert f"{round(ours.memory_bytes / 2**20)} MiB" in page and '<span class="muted">unknown</span>' in page


def test_trouble_with_chores_leaves_the_agent_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Launcher:
        runs_here = True

        def facts(self) -> dict[str, Any]:
            return {}

        def runtimes(self) -> list[Any]:
            return []

        def missing(self) -> str:
            return ""

        def containment(self) -> dict[str, Any]:
            return {}

        def stop_left(self) -> None:
            pass

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError("no /proc here")

    monkeypatch.setattr(Agent, "_measure", fails)
    launcher: Any = Launcher()
    Agent(node="local", servers=tmp_path, launcher=launcher, connect=launcher)._introduce()
    assert "no /proc here; it is tried again" in caplog.text
