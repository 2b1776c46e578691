"""GET …/releases/{name}/diff: the whole answer, who may ask, and what happens to what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.test import Client

from accounts.actions import actor_for, issue_token
from accounts.core.access import Actor
from registry import actions
from registry.models import Inspection, Release, ServedModel
from registry.queries import release_diff
from tests.support.worlds.factories import make_environment
from tests.support.worlds.model_files import onnx_file, tokenizer_file
from tests.support.worlds.registry_samples import draft_with, person, served_model, sha256
from validators.core.compare import share_of
from validators.models import GateResult, GateRun, Report

pytestmark = pytest.mark.django_db
URL = "/api/v1/models/sentiment/releases/r2/diff"


def caller(name: str, **role: Any) -> Client:
    user = person(name, **role)
    token = issue_token(user=user, name="test", actor=actor_for(user))
    return Client(headers={"Authorization": f"Bearer {token}"})


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    cache.clear()


@pytest.fixture
def dev(client: Client) -> Client:
    return caller("dev")


@pytest.fixture
def releases(dev: Client) -> tuple[Release, Release]:
    actor = Actor.system("tests")
    model = served_model(actor)
    return (
        _seal(actor, model, onnx_file("one"), {"[UNK]": 0, "good": 1}),
        _seal(actor, model, onnx_file("two", weights=[("w", "FP16", [2])]), {"[UNK]": 0, "good": 2, "bad": 1}),
    )


def _seal(actor: Actor, model: ServedModel, graph: bytes, words: dict[str, int]) -> Release:
    return actions.seal(
        actor=actor, release=draft_with(actor, model, graph, tokenizer__tokenizer_json=tokenizer_file(words))
    )


def report(release: Release, right: int) -> Report:
    share = share_of(right, 1000)
    accuracy = {"value": right / 1000, "low": share.low, "high": share.high, "n": 1000}
    evidence = {"accuracy": accuracy, "golden_set": "sha256:a", "output": "p", "predictions": ["x"] * 10}
    gate_run = GateRun.objects.create(
        release=release, environment=make_environment(f"for-{release.name}"), policy={}, policy_digest="", requested_by="tests",
        state="finished", verdict="passed",
    )  # fmt: skip
    GateResult.objects.create(gate_run=gate_run, gate="golden", position=0, verdict="passed", evidence=evidence)
    body = {"gates": [{"gate": "golden", "verdict": "passed", "reason": "", "evidence": evidence}], "hardware": {}}
    return Report.objects.create(
        gate_run=gate_run, release=release, manifest_digest=release.digest or "", policy_digest="", verdict="passed",
        body=json.dumps(body), digest=f"sha256:{sha256(release.name.encode())}", signature="", key_id="",
    )  # fmt: skip


def test_the_whole_difference(dev: Client, releases: tuple[Release, Release]) -> None:
    old, new = report(releases[0], 800), report(releases[1], 900)
    answer = dev.get(f"{URL}?against=r1")
    told = answer.json()
    assert answer.status_code == 200 and not told["is_same"]
    assert told["old"] == {
        "model": "sentiment", "name": "r1", "digest": releases[0].digest, "report": old.digest, "verdict": "passed",
    }  # fmt: skip
    assert told["new"]["report"] == new.digest
    assert [(c["part"], c["field"], c["kind"]) for c in told["changes"]] == [
        ("files", "artifact/model.onnx", "changed"),
        ("files", "tokenizer/tokenizer.json", "changed"),
        ("headers", "tokenizer/tokenizer.json.tokenizer.largest_id", "changed"),
        ("headers", "tokenizer/tokenizer.json.tokenizer.vocabulary", "changed"),
    ]
    (tensors,) = told["tensors"]
    assert (tensors["format"], tensors["added"]) == ("onnx", 1)
    tokens = told["tokenizers"]["tokenizer/tokenizer.json"]
    assert tokens["vocabulary"] == {"old": 2, "new": 3, "added": 1, "removed": 0, "changed": 1}
    assert told["coupled"]["parts"] == ["artifact", "tokenizer"] and "at once against r1" in told["coupled"]["warning"]
    assert [(m["metric"], m["says"]) for m in told["metrics"]] == [("accuracy", "better")]
    assert told["agreement"]["value"] == 1.0 and told["unread"] == {}


def test_the_same_release_and_one_of_another_model(dev: Client, releases: tuple[Release, Release]) -> None:
    assert dev.get(f"{URL}?against=r2").json()["is_same"] is True
    assert dev.get(f"{URL}?against=sentiment/r1").json()["is_same"] is False


def test_headers_come_from_what_was_remembered(
    dev: Client, releases: tuple[Release, Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_diff, "read_header", None)  # would fail if it were called
    assert dev.get(f"{URL}?against=r1").json()["tensors"]
    monkeypatch.undo()
    Inspection.objects.all().delete()
    assert dev.get(f"{URL}?against=r1").json()["tensors"] and not Inspection.objects.exists()


def test_json_files_are_told_by_member(dev: Client) -> None:
    actor = Actor.system("tests")
    model = served_model(actor)
    for document in ({"labels": 2, "names": ["a"] * 400, "same": 1}, {"labels": 3, "names": ["b"] * 400, "same": 1}):
        draft = draft_with(
            actor, model, artifact__config_json=json.dumps(document).encode(), tokenizer__vocab_json=b"[]"
        )
        actions.seal(actor=actor, release=draft)
    changes = [change for change in dev.get(f"{URL}?against=r1").json()["changes"] if change["part"] == "contents"]
    assert [change["field"] for change in changes] == ["artifact/config.json.labels", "artifact/config.json.names"]
    assert changes[0]["new"] == 3 and changes[1]["new"].endswith("…")


DEEP = b'{"a": ' + b"[" * 400 + b"1" + b"]" * 400 + b"}"


@pytest.mark.parametrize(
    "odd",
    [b'{"a": NaN, "b": 1e999}', b'{"a": "\\ud800", "\\udfff": 1}', DEEP, b'{"a": "\\u0000"}', b"[1, 2]", b"3"],
)
def test_odd_json_is_answered_all_the_same(dev: Client, odd: bytes) -> None:
    actor = Actor.system("tests")
    model = served_model(actor)
    wrapped = tokenizer_file({"a": 0}).replace(b'"normalizer": {', b'"padding2": 1, "normalizer": {"x": ' + odd + b", ")
    for document, tokenizer in ((b'{"a": 1}', tokenizer_file({"a": 0})), (odd, wrapped)):
        files = {"artifact__config_json": document, "tokenizer__tokenizer_json": tokenizer}
        actions.seal(actor=actor, release=draft_with(actor, model, **files))
    answer = dev.get(f"{URL}?against=r1")
    assert answer.status_code == 200 and answer.json()["changes"]
    assert not answer.json()["tokenizers"]["tokenizer/tokenizer.json"].get("unknown")


def empty_the_store() -> None:
    for path in Path(settings.BLOB_STORE).rglob("*"):
        if path.is_file():
            path.unlink()


def test_large_tokenizers_are_read_once(dev: Client, releases: tuple[Release, Release]) -> None:
    """What differed between two digests differs for ever: asked again, not even their bytes are needed."""
    first = dev.get(f"{URL}?against=r1").json()["tokenizers"]
    empty_the_store()
    assert dev.get(f"{URL}?against=r1").json()["tokenizers"] == first
    cache.clear()
    assert "unknown" in dev.get(f"{URL}?against=r1").json()["tokenizers"]["tokenizer/tokenizer.json"]


def test_bytes_that_are_gone_are_said_to_be_unread(dev: Client, releases: tuple[Release, Release]) -> None:
    Inspection.objects.all().delete()
    empty_the_store()
    told = dev.get(f"{URL}?against=r1").json()
    assert set(told["unread"]) == {"artifact/model.onnx", "tokenizer/tokenizer.json"}
    assert "not in the store" in told["tokenizers"]["tokenizer/tokenizer.json"]["unknown"]


def test_questions_that_are_refused(dev: Client, releases: tuple[Release, Release]) -> None:
    for query, status, code in (
        ("", 422, "invalid"), ("?against=r9", 404, "no_such_release"), ("?against=other/r1", 404, "no_such_model"),
        ("?against=sentiment/", 422, "invalid"), ("?against=%00", 404, "no_such_release"),
    ):  # fmt: skip
        answer = dev.get(f"{URL}{query}")
        assert (answer.status_code, answer.json()["code"]) == (status, code), query


def test_another_team_learns_nothing(dev: Client, releases: tuple[Release, Release]) -> None:
    stranger = caller("eve", team="sound")
    for url in (f"{URL}?against=r1", "/api/v1/models/nothing/releases/r2/diff?against=r1"):
        assert (stranger.get(url).status_code, stranger.get(url).json()["code"]) == (404, "no_such_model")
