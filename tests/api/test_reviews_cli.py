"""Notes and comments by the command line, and what it says of a release that was rolled back."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.models import Release
from sluicegate.cli import exits
from tests.api.cli_world import Run, model, release_folder, run, tokens  # noqa: F401
from tests.factories import make_release
from tests.rollout_setup import put, serves, started

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


def test_notes_comments_and_outcome(run: Run, model: None, tmp_path: Path) -> None:  # noqa: F811
    run("robot", "push", str(release_folder(tmp_path / "one")))
    assert run("ada", "release", "note", "sentiment/r1")[1]["notes"] == []
    code, note = run("ada", "release", "note", "sentiment/r1", "--text", "Good.", "--tag", "precision=fp32")
    assert (code, note["version"], note["tags"]) == (exits.OK, 1, ["precision=fp32"])
    assert run("ada", "release", "note", "sentiment/r1", "--tag", "")[1]["text"] == "Good."
    code, comment = run(
        "mara",
        "release",
        "comments",
        "sentiment/r1",
        "--write",
        "Why?",
        "--section",
        "code",
        "--file",
        "artifact/model.onnx",
    )
    assert code == exits.OK and comment["path"] == "artifact/model.onnx"
    assert len(run("ada", "release", "comments", "sentiment/r1", "--open")[1]) == 1
    assert run("ada", "release", "comments", "sentiment/r1", "--resolve", str(comment["id"]))[1]["resolved_by"] == "ada"
    assert run("ada", "release", "comments", "sentiment/r1", "--open")[1] == []
    release = Release.objects.get(number=1)
    assert run("ada", "release", "show", "sentiment/r1")[1]["rolled_back"] == []
    serves(make_release(release.model))
    put(started(candidate=release), "rolled_back", weight_bp=0, reason="Errors.")
    shown = run("ada", "release", "show", "sentiment/r1")[1]
    assert [one["why"] for one in shown["rolled_back"]] == ["Errors."]
    assert run("ada", "release", "list", "sentiment")[1][1]["rolled_back"][0]["environment"] == "production"
