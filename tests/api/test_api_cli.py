"""`sluicegate api`: any operation by its method and path."""

# ruff: noqa: F811 - fixtures are named as they are used

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from registry.models import ServedModel
from sluicegate.cli import exits
from sluicegate.cli.api import fields_of
from sluicegate.cli.errors import CommandError
from sluicegate.cli.main import main
from tests.api.cli_world import GRAPH, Run, model, model_file, release_folder, run, tokens  # noqa: F401  # fixtures

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole commands, one request after another


def test_it_reads_and_changes_what_the_api_has(run: Run, model: None) -> None:
    code, shown = run("ada", "api", "get", "/models/sentiment")
    assert (code, shown["slug"]) == (exits.OK, "sentiment")
    assert run("ada", "api", "GET", "/api/v1/models/sentiment")[1] == shown
    code, changed = run(
        "ada", "api", "PATCH", "models/sentiment", "title=Mood", "tags:=[]", "--if-match", str(shown["version"])
    )  # fmt: skip
    assert code == exits.REFUSED  # tags is no field of a model
    code, changed = run("ada", "api", "PATCH", "models/sentiment", "title=Mood", "--if-match", str(shown["version"]))
    assert (code, changed["title"], ServedModel.objects.get().title) == (exits.OK, "Mood", "Mood")
    assert run("ada", "api", "PATCH", "/models/sentiment", "title=x", "--if-match", "1")[0] == exits.REFUSED


def test_a_change_without_its_version_is_refused_with_the_next_step(
    run: Run, model: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run("ada", "api", "PATCH", "/models/sentiment", "title=Mood")
    assert code == exits.REFUSED and ServedModel.objects.get().title == ""
    assert main(["api", "PATCH", "/models/sentiment", "title=Mood"]) == exits.REFUSED
    assert "If-Match" in capsys.readouterr().err


def test_pages_are_followed_and_files_come_as_they_are(
    run: Run, model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        run("robot", "push", str(release_folder(tmp_path / name, provenance={"notes": name})))
    code, listed = run("ada", "api", "GET", "/models/sentiment/releases", "page_size=1", "--all")
    assert (code, [one["name"] for one in listed]) == (exits.OK, ["r3", "r2", "r1"])
    written = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", written)
    assert main(["api", "GET", "/models/sentiment/releases/r1/files/artifact/model.onnx"]) == exits.OK
    monkeypatch.undo()
    assert written.buffer.getvalue() == GRAPH  # type: ignore[attr-defined]


def test_a_body_comes_from_a_file_and_fields_replace_its_own(run: Run, tmp_path: Path) -> None:
    path = model_file(tmp_path)
    code, created = run("ada", "api", "POST", "/models", "title=From a file", "--input", str(path))
    assert (code, created["slug"], created["title"]) == (exits.OK, "sentiment", "From a file")


@pytest.mark.parametrize(
    "words",
    [
        ["GET", "https://127.0.0.1:9/api/v1/me"],  # the token is for one server
        ["GET", "http://testserver.attacker.example/api/v1/me"],
        ["POST", "/models", "--all"],
        ["GET", "/models", "--input", "body.json"],
        ["GET", "/models", "limit"],
        ["GET", "/nothing-here"],
        ["HEAD", "/models"],
    ],
)
def test_what_cannot_be_sent_is_refused(run: Run, words: list[str]) -> None:
    assert run("ada", "api", *words)[0] == exits.REFUSED


def test_fields_are_texts_or_json() -> None:
    assert fields_of(["a=1", "b:=1", "c=", "d=x=y", 'e:={"f": [true]}']) == {
        "a": "1", "b": 1, "c": "", "d": "x=y", "e": {"f": [True]},
    }  # fmt: skip
    for wrong in (["a"], ["=1"], [":=1"], ["a:=yes"], ["a=1", "a=2"]):
        with pytest.raises(CommandError):
            fields_of(wrong)
