"""What files say of themselves, at the seal: lies are refused, headers are read once, pickles need their own waiver."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import pytest
from django.test import Client

from accounts.actions import actor_for, issue_token
from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid
from ledger.models import Event
from registry import actions, queries
from registry.actions import inspections
from registry.models import Inspection, Release, ServedModel
from registry.queries.file_headers import imports_of
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import ONNX, developer, draft_with, person, served_model, sha256

pytestmark = pytest.mark.django_db


@pytest.fixture
def dev() -> Actor:
    return developer()


@pytest.fixture
def model(dev: Actor) -> ServedModel:
    return served_model(dev)


@pytest.fixture
def manager(dev: Actor) -> Actor:
    return actor_for(person("rm", Role.RELEASE_MANAGER))


def test_a_file_that_lies_is_refused_before_it_is_sealed(dev: Actor, model: ServedModel) -> None:
    draft = draft_with(dev, model, b"not really a graph", artifact__w_safetensors=pickle.dumps({"a": 1}))
    with pytest.raises(Invalid) as caught:
        actions.seal(actor=dev, release=draft)
    told = {error["field"]: error for error in caught.value.facts["errors"]}
    assert caught.value.code == "invalid_files" and set(told) == {
        "files.artifact/model.onnx",
        "files.artifact/w.safetensors",
    }
    assert "a pickle stream" in told["files.artifact/w.safetensors"]["message"]
    assert not Inspection.objects.exists() and Release.objects.get().state == "draft"


def test_a_graph_that_contradicts_release_yaml_is_not_sealed(dev: Actor, model: ServedModel) -> None:
    draft = draft_with(dev, model, onnx_file(outputs=[("logits", "FP32", [-1, 2])]))
    with pytest.raises(Invalid, match="no output 'probabilities'"):
        actions.seal(actor=dev, release=draft)


def test_a_header_is_read_once_for_all_releases_that_hold_it(
    dev: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions.seal(actor=dev, release=draft_with(dev, model))
    (row,) = Inspection.objects.all()
    assert (row.blob_id, row.kind, row.facts["outputs"]) == (sha256(ONNX), "onnx", [["probabilities", "FP32", [-1, 2]]])
    monkeypatch.setattr(inspections, "read_header", None)  # would fail if it were called again
    draft = draft_with(dev, model, changes={"provenance.notes": "The second."})
    assert actions.seal(actor=dev, release=draft).number == 2
    Inspection.objects.update(reader=0)
    monkeypatch.undo()
    actions.seal(actor=dev, release=draft_with(dev, model, changes={"provenance.notes": "The third."}))
    assert Inspection.objects.get().reader > 0


def test_a_pickle_needs_a_waiver_of_its_own_kind(dev: Actor, model: ServedModel, manager: Actor) -> None:
    changes = {"runtime.backend": "python"}
    files = {"artifact__model_py": b"import os\n", "artifact__head_pkl": pickle.dumps([1])}
    release = actions.seal(actor=dev, release=draft_with(dev, model, changes=changes, **files))
    assert release.is_code_bearing and queries.waivers_missing(release) == {"code", "pickle"}
    with pytest.raises(Invalid, match="one of code, pickle"):
        actions.grant_waiver(actor=manager, release=release, reason="read", kind="all")
    assert actions.grant_waiver(actor=manager, release=release, reason="read it").kind == "code"
    assert not queries.has_code_waiver(release) and queries.waivers_missing(release) == {"pickle"}
    assert actions.grant_waiver(actor=manager, release=release, reason="ours").kind == "pickle"
    assert queries.has_code_waiver(release)
    told = Event.objects.filter(verb="release.waived").last()
    assert told is not None and (told.facts["kind"], told.facts["author"]) == ("pickle", "dev")


def test_whoever_judges_a_waiver_sees_what_a_pickle_would_import(
    dev: Actor, model: ServedModel, client: Client
) -> None:
    files = {"artifact__head_pkl": pickle.dumps(OrderedDict(a=1)), "artifact__bare_pkl": pickle.dumps([1])}
    release = actions.seal(actor=dev, release=draft_with(dev, model, **files))
    told = {"artifact/head.pkl": ["collections.OrderedDict"]}
    assert imports_of(release) == told
    user = person("ana")
    token = issue_token(user=user, name="test", actor=actor_for(user))
    api = Client(headers={"Authorization": f"Bearer {token}"})
    assert api.get("/api/v1/models/sentiment/releases/r1").json()["imports"] == told
    headers = api.get("/api/v1/models/sentiment/releases/r1/headers").json()["results"]
    assert [(one["path"], one["kind"]) for one in headers] == [
        ("artifact/bare.pkl", "pickle"), ("artifact/head.pkl", "pickle"), ("artifact/model.onnx", "onnx"),
    ]  # fmt: skip
    assert headers[2]["facts"]["outputs"] == [["probabilities", "FP32", [-1, 2]]]
    client.force_login(user)
    assert "<code>collections.OrderedDict</code>" in client.get("/models/sentiment/r/1/").content.decode()
    plain = actions.seal(actor=dev, release=draft_with(dev, model))
    assert imports_of(plain) == {}
