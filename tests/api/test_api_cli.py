"""`sluicegate api`: any operation by its method and path."""

# ruff: noqa: F811 - fixtures are named as they are used

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from registry.models import ServedModel
from sluicegate.cli import exits
from sluicegate.cli.api import fields_of, value_at
from sluicegate.cli.errors import CommandError
from sluicegate.cli.main import main
from sluicegate.client.errors import Mistake
from tests.api.cli_world import GRAPH, Run, model, model_file, release_folder, run, tokens  # noqa: F401  # fixtures
from validators.queries import golden_lines

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
    for more in ([], ["--if-match", "*"]):  # a change of fields means the version that was read
        assert run("ada", "api", "PATCH", "/models/sentiment", "title=Mood", *more)[0] == exits.REFUSED
        assert ServedModel.objects.get().title == ""
        assert main(["api", "PATCH", "/models/sentiment", "title=Mood", *more]) == exits.REFUSED
        said = capsys.readouterr().err
        assert "If-Match" in said and "sluicegate api GET PATH --field version" in said


def test_fields_come_before_options_and_behind_them(run: Run, model: None, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("api", "PATCH", "--if-match", "1", "/models/sentiment", "title=Mood", "--field", "title", "description=x")
    assert run("ada", *words, plain=True) == (exits.OK, "Mood\n")
    assert ServedModel.objects.get().description == "x"
    assert main(["api", "GET", "/models", "--al", "--everything"]) == exits.REFUSED
    assert main(["model", "list", "all"]) == exits.REFUSED
    assert capsys.readouterr().err.count("unrecognized arguments") == 2


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


def test_a_body_comes_from_standard_input_and_fields_from_files(
    run: Run, model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("title: Mood\ndescription: from standard input\n"))
    (tmp_path / "text").write_text("from a file\n")
    (tmp_path / "policy.yaml").write_text("gates: [contract]\n")
    fields = (f"description=@{tmp_path / 'text'}", f"gate_policy:=@{tmp_path / 'policy.yaml'}")
    assert run("ada", "api", "PATCH", "/models/sentiment", *fields, "--input", "-", "--if-match", "1")[0] == exits.OK
    changed = ServedModel.objects.get()
    assert (changed.title, changed.description) == ("Mood", "from a file")
    assert changed.gate_policy == {"gates": ["contract"]}


def test_a_text_that_begins_with_an_at_sign_can_be_written() -> None:
    with pytest.raises(Mistake) as refused:
        fields_of(["reason=@ada, please"])
    assert """reason:='"@…"'""" in refused.value.next_step
    assert fields_of(['reason:="@ada, please"']) == {"reason": "@ada, please"}


def test_bytes_are_sent_as_they_are(run: Run, model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b'{"id":"a","inputs":{"text":"good"},"label":1}\n{"id":"b","inputs":{"text":"bad"},"label":0}\n'
    (tmp_path / "golden.jsonl").write_bytes(lines)
    sets = ("api", "POST", "/models/sentiment/golden-sets", "--type", "application/jsonl", "--input")
    code, digest = run("ada", *sets, str(tmp_path / "golden.jsonl"), "--field", "digest")
    assert code == exits.OK and golden_lines(ServedModel.objects.get(), digest) == lines
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines[:46])))
    assert run("ada", *sets, "-", "--field", "items") == (exits.OK, 1)
    assert run("ada", *sets, str(tmp_path / "none"))[0] == exits.REFUSED


def test_one_field_of_the_answer_is_printed_as_text(run: Run, model: None) -> None:
    assert run("ada", "api", "GET", "/models/sentiment", "--field", "slug", plain=True) == (exits.OK, "sentiment\n")
    assert run("ada", "api", "GET", "/models/sentiment", "--field", "slug") == (exits.OK, "sentiment")
    assert run("ada", "api", "GET", "/models", "--field", "results.0.slug", plain=True) == (exits.OK, "sentiment\n")
    assert run("ada", "api", "GET", "/models", "--all", "--field", "slug", plain=True) == (exits.OK, "sentiment\n")
    assert run("ada", "api", "GET", "/models", "--all", "--field", "slug") == (exits.OK, ["sentiment"])
    code, shown = run("ada", "api", "GET", "/models/sentiment", "--field", "contract.inputs", plain=True)
    assert code == exits.OK and json.loads(shown)[0]["name"] == "text"


def test_an_answer_without_the_field_is_not_lost(run: Run, tokens: dict[str, str]) -> None:
    code, told = run("ada", "api", "POST", "/users/ada/tokens", "name=x", "--field", "tokn")
    assert code == exits.REFUSED and told["next_step"] == "Its fields: token."
    tokens["new"] = told["answer"]["token"]  # it is shown this once
    assert run("new", "api", "GET", "/me", "--field", "username") == (exits.OK, "ada")
    assert value_at({"a": [{"b": ""}]}, "a.0.b") == ""
    for wrong in ("a.1", "a.x", "b", "a.0.b.c", ""):
        with pytest.raises(CommandError):
            value_at({"a": [{"b": ""}]}, wrong)


@pytest.mark.parametrize(
    "words",
    [
        ["GET", "https://127.0.0.1:9/api/v1/me"],  # the token is for one server
        ["GET", "http://testserver.attacker.example/api/v1/me"],
        ["POST", "/models", "--all"],
        ["GET", "/me", "--all"],
        ["GET", "/models", "--input", "body.json"],
        ["GET", "/models", "limit"],
        ["GET", "/nothing-here"],
        ["POST", "/models", "slug=a", "--type", "text/csv"],
        ["POST", "/models", "--input", "/nowhere/body.json"],
        ["POST", "/models", "title=@/nowhere/title"],
        ["POST", "/models", "title=half a character: \udcff"],
        ["POST", "/models", "objectives:=NaN"],
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
