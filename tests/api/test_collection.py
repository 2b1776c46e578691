"""Retirement, collection and aliases over REST and on the command line; and that no call changes what is sealed."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.urls import get_resolver

from accounts.models import User
from registry.models import Blob, Release
from registry.storage import store
from sluicegate.cli import exits
from tests.api.cli_world import Run, model, release_folder, run, tokens  # noqa: F401  # fixtures

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole commands, one request after another
CHAMPION = "/models/sentiment/aliases/champion"


@pytest.fixture
def pushed(run: Run, model: None, tmp_path: Path) -> dict[str, Any]:
    """sentiment/r1."""
    code, release = run("robot", "push", str(release_folder(tmp_path / "one")))
    assert code == exits.OK
    return release


def decide(run: Run, user: str, verb: str, reason: str) -> tuple[int, Any]:
    """Retires or restores sentiment/r1 at its present version."""
    here = "/models/sentiment/releases/r1"
    version = str(Release.objects.get(number=1).version)
    return run(user, "api", "POST", f"{here}/{verb}", f"reason={reason}", "--if-match", version)


def test_retire_collect_and_restore(run: Run, pushed: dict[str, Any], settings: Any) -> None:
    collection = ("/registry/collection",)
    assert decide(run, "robot", "retire", "old")[0] == exits.REFUSED
    code, gone = decide(run, "ada", "retire", "old")
    assert (code, gone["state"]) == (exits.OK, "retired") and gone["retired_at"]
    assert run("ada", "api", "GET", *collection)[0] == exits.REFUSED
    code, plan = run("admin", "api", "GET", *collection)
    assert code == exits.OK and {item["fate"] for item in plan["items"]} == {"mark"}
    assert plan["totals"]["mark"]["blobs"] == 2 == len(plan["items"])
    assert len(run("admin", "api", "GET", *collection, "all=1")[1]["items"]) == 3
    assert run("admin", "api", "POST", *collection)[1]["marked"] == 2
    assert decide(run, "ada", "restore", "not that old")[1]["state"] == "sealed"
    settings.UNDELETE_DAYS = 0
    decide(run, "ada", "retire", "old after all")
    run("admin", "api", "POST", *collection)
    code, done = run("admin", "api", "POST", *collection)
    assert (done["deleted"], done["left"]) == (2, 0) and done["freed_bytes"] > 0
    code, told = decide(run, "ada", "restore", "oh")
    assert (code, told["code"]) == (exits.REFUSED, "bytes_gone")
    assert run("ada", "release", "show", "sentiment/r1")[1]["digest"] == pushed["digest"]
    code, told = run("ada", "release", "fetch", "sentiment/r1", str(Path(django_settings.BLOB_STORE).parent / "copy"))
    assert code == exits.REFUSED and told["code"] == "bytes_collected" and "were deleted on" in told["error"]


def test_a_retirement_needs_the_version(run: Run, pushed: dict[str, Any], api: Any) -> None:
    ada = api(User.objects.get(username="ada"))
    here = "/api/v1/models/sentiment/releases/r1"
    assert ada.post(f"{here}/retire", {"reason": "x"}, format="json").status_code == 428
    assert ada.post(f"{here}/retire", {"reason": "x"}, format="json", HTTP_IF_MATCH="9").status_code == 412
    assert ada.post(f"{here}/retire", {"why": "x"}, format="json", HTTP_IF_MATCH="2").status_code == 422


def test_a_release_in_use_says_by_whom(run: Run, pushed: dict[str, Any]) -> None:
    assert run("ada", "api", "PUT", CHAMPION, "release=r1")[0] == exits.OK
    code, told = decide(run, "ada", "retire", "old")
    assert (code, told["used_by"]) == (exits.REFUSED, ["alias sentiment/champion"])


def test_long_plans_come_in_pages(run: Run, pushed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.api.garbage_collection.MOST_ITEMS", 1)
    pages = [run("admin", "api", "GET", "/registry/collection", "all=1", f"from={start}")[1] for start in range(3)]
    assert [(len(page["items"]), page["more"]) for page in pages] == [(1, 2), (1, 1), (1, 0)]
    assert len({page["items"][0]["subject"] for page in pages}) == 3


def test_an_alias_is_set_moved_and_cleared(run: Run, pushed: dict[str, Any], tmp_path: Path) -> None:
    run("robot", "push", str(release_folder(tmp_path / "two", provenance={"notes": "second"})))
    code, alias = run("ada", "api", "PUT", CHAMPION, "release=r1", "reason=first")
    assert (code, alias["release"], alias["digest"], alias["version"]) == (exits.OK, "r1", pushed["digest"], 1)
    assert run("ada", "api", "PUT", CHAMPION, "release=r2", "--if-match", "0")[1]["status"] == 412
    assert run("ada", "api", "PUT", CHAMPION, "release=r2", "--if-match", "1")[1]["release"] == "r2"
    cleared = run("ada", "api", "PUT", CHAMPION, "release:=null", "reason=none is good", "--if-match", "2")[1]
    assert cleared["release"] is None
    here = CHAMPION.removesuffix("/champion")
    assert [a["name"] for a in run("ada", "api", "GET", here, "--all")[1]] == ["champion"]
    moves = run("ada", "api", "GET", f"{CHAMPION}/history", "--all")[1]
    assert [(m["from_release"], m["to_release"]) for m in moves] == [("r2", None), ("r1", "r2"), (None, "r1")]
    assert (moves[0]["reason"], moves[0]["actor"]) == ("none is good", "ada")
    for wrong in ("latest", "r2", "stable"):
        assert run("ada", "api", "PUT", f"{here}/{wrong}", "release=r1")[0] == exits.REFUSED
    assert run("robot", "api", "PUT", f"{here}/best", "release=r1")[0] == exits.REFUSED
    assert run("ada", "api", "GET", f"{here}/none-such/history")[0] == exits.REFUSED


def test_an_alias_of_another_team_is_not_there(pushed: dict[str, Any], run: Run, api: Any) -> None:
    run("ada", "api", "PUT", CHAMPION, "release=r1")
    zoe, ada = api(User.objects.create(username="zoe")), api(User.objects.get(username="ada"))
    here = "/api/v1/models/sentiment/aliases"
    for address in (here, f"{here}/champion", f"{here}/champion/history"):
        assert zoe.get(address).status_code == 404 and ada.get(address).status_code == 200
    assert zoe.put(f"{here}/champion", {"release": "r1"}, format="json").status_code == 404
    assert ada.put(f"{here}/champion", {"release": "r1"}, format="json").status_code == 428
    assert ada.get(f"{here}/champion")["ETag"] == '"1"'


# --- what is sealed stays: the other calls


def test_no_door_changes_a_sealed_release(run: Run, pushed: dict[str, Any], api: Any) -> None:
    """An administrator, every method, every address of the release: nothing of it differs afterwards."""
    root, before = api(User.objects.get(username="admin")), Release.objects.values().get()
    here = "/api/v1/models/sentiment/releases/r1"
    draft = f"/api/v1/releases/{pushed['id']}"
    file = f"{draft}/files/artifact/model.onnx"
    for address in (
        here,
        f"{here}/files/artifact/model.onnx",
        f"{here}/signature",
        f"{here}/attestations",
        draft,
        file,
    ):
        for method in ("put", "patch", "delete"):
            answer = getattr(root, method)(address, b"x", content_type="application/octet-stream", HTTP_IF_MATCH="2")
            assert answer.status_code in {405, 409, 415, 422}, (method, address, answer.status_code)
    assert root.post(f"{draft}/seal").json()["digest"] == before["digest"]
    assert Release.objects.values().get() == before


def test_there_is_no_admin_site_that_could(run: Run, pushed: dict[str, Any]) -> None:
    assert "django.contrib.admin" not in django_settings.INSTALLED_APPS
    assert "admin" not in get_resolver().namespace_dict


def test_bytes_overwritten_in_the_store_are_found(run: Run, pushed: dict[str, Any], tmp_path: Path) -> None:
    """By the server's own reading of them, by the client's, and offline against the signature."""
    assert run("ada", "keys", "--out", str(tmp_path / "key.pem"))[0] == exits.OK
    run("ada", "release", "fetch", "sentiment/r1", str(tmp_path / "copy"))
    sha256 = Blob.objects.get(pk=next(f["sha256"] for f in pushed["files"] if f["path"].endswith("onnx"))).pk
    path = store().path(sha256)
    good = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    code, told = run("ada", "release", "verify", "sentiment/r1")
    assert code == exits.FAILED and "artifact/model.onnx" in told["wrong"][0]
    assert run("ada", "release", "fetch", "sentiment/r1", str(tmp_path / "again"))[0] == exits.FAILED
    (tmp_path / "copy" / "artifact" / "model.onnx").write_bytes(path.read_bytes())
    code, told = run("ada", "release", "verify", str(tmp_path / "copy"), "--key", str(tmp_path / "key.pem"))
    assert code == exits.FAILED and "artifact/model.onnx was changed" in told["wrong"][0]
