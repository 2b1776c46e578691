"""Keys and signatures over REST and on the command line: offline, a folder proves what it is or says what differs."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from registry.core import oms
from registry.signing import installation_keys
from sluicegate.cli import exits
from sluicegate.cli.main import main
from tests.api.cli_world import Run, model, release_folder, run, tokens  # noqa: F401  # fixtures

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole commands, one request after another


@pytest.fixture
def copy(run: Run, model: None, tmp_path: Path) -> Path:
    """A fetched release, and beside it the key that verifies it."""
    assert run("robot", "push", str(release_folder(tmp_path / "one")))[0] == exits.OK
    assert run("ada", "release", "fetch", "sentiment/r1", str(tmp_path / "copy"))[1]["is_signed"]
    assert run("ada", "keys", "--out", str(tmp_path / "key.pem"))[0] == exits.OK
    return tmp_path / "copy"


def offline(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, Any]:
    """What the command says without any server and without a token."""
    capsys.readouterr()
    key = str(folder.parent / "key.pem")
    code = main(["release", "verify", str(folder), "--key", key, "--server", "http://127.0.0.1:1", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_fetched_folder_is_verified_offline(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICEGATE_TOKEN")
    code, told = offline(capsys, copy)
    assert (code, told["ok"], told["release"]) == (exits.OK, True, "sentiment/r1")
    assert told["signed_by"] == installation_keys.present_key(installation_keys.Use.RELEASES).key_id
    assert offline(capsys, copy, "--expect", "sentiment/r1")[0] == exits.OK
    assert offline(capsys, copy, "--expect", told["digest"])[0] == exits.OK
    code, told = offline(capsys, copy, "--expect", "sentiment/r2")
    assert code == exits.FAILED and "not sentiment/r2" in told["wrong"][0]


def test_what_was_changed_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = copy / "artifact" / "model.onnx"
    good = graph.read_bytes()
    graph.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    assert "artifact/model.onnx was changed" in offline(capsys, copy)[1]["wrong"][0]
    graph.unlink()
    (copy / "artifact" / "new.json").write_text("{}")
    code, told = offline(capsys, copy)
    assert code == exits.FAILED
    assert [line.split(" is ")[0] for line in told["wrong"]] == ["artifact/model.onnx", "artifact/new.json"]
    (copy / "artifact" / "new.json").unlink()
    (copy.parent / "elsewhere").write_bytes(good)
    graph.symlink_to(copy.parent / "elsewhere")
    assert "a link or special file" in offline(capsys, copy)[1]["wrong"][0]


def test_a_folder_without_key_or_signature_proves_nothing(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "verify", str(copy)]) == exits.REFUSED
    assert "sluicegate keys --out" in capsys.readouterr().err
    (copy / oms.SIGNATURE_FILE).write_text('{"mediaType": "text"}')
    code, told = offline(capsys, copy)
    assert code == exits.FAILED and "not a application/vnd.dev.sigstore" in told["wrong"][0]
    (copy / oms.SIGNATURE_FILE).unlink()
    assert offline(capsys, copy)[0] == exits.REFUSED


def test_after_a_rotation_old_copies_still_verify_and_a_release_is_signed_anew(
    run: Run,
    copy: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call_command("rotate_key", "releases")
    capsys.readouterr()
    keys = run("ada", "keys", "--out", str(copy.parent / "key.pem"))[1]
    releases = [key for key in keys if key["use"] == "releases"]
    assert [key["is_current"] for key in releases] == [True, False]
    assert offline(capsys, copy)[1]["signed_by"] == releases[1]["key_id"]
    assert run("ada", "api", "POST", "/models/sentiment/releases/r1/signature")[1]["key_id"] == releases[0]["key_id"]
    code, told = run("ada", "release", "verify", "sentiment/r1", "--key", str(copy.parent / "key.pem"))
    assert code == exits.OK and told["signature"] == f"Signed by {releases[0]['key_id']}."


def test_an_administrator_rotates_from_afar(run: Run, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ada", "keys", "--rotate", "releases")[0] == exits.REFUSED
    code, keys = run("admin", "keys", "--rotate", "releases", "--out", str(copy.parent / "key.pem"))
    assert code == exits.OK and [key["is_current"] for key in keys if key["use"] == "releases"] == [True, False]
    assert offline(capsys, copy)[0] == exits.OK
    assert main(["keys", "--rotate", "everything"]) == exits.REFUSED


def test_verify_online_finds_a_signature_of_another_key(
    run: Run,
    copy: Path,
    tmp_path: Path,
    settings: Any,
) -> None:
    settings.RELEASE_KEY_FILE = str(tmp_path / "stranger.pem")
    (tmp_path / "strange-key.pem").write_text(installation_keys.present_key(installation_keys.Use.RELEASES).pem)
    code, told = run("ada", "release", "verify", "sentiment/r1", "--key", str(tmp_path / "strange-key.pem"))
    assert code == exits.FAILED and "not known here" in told["wrong"][0]


def test_keys_and_signatures_over_rest(copy: Path, api: Any) -> None:
    from accounts.models import User

    ada, outsider = api(User.objects.get(username="ada")), api(User.objects.create(username="zoe"))
    here = "/api/v1/models/sentiment/releases/r1"
    assert api().get("/api/v1/keys").status_code == 401
    uses = [key["use"] for key in ada.get("/api/v1/keys").json()["results"]]
    assert uses == ["reports", "releases"]
    bundle = ada.get(f"{here}/signature")
    assert bundle["Content-Type"] == oms.BUNDLE_TYPE and bundle.content == (copy / oms.SIGNATURE_FILE).read_bytes()
    listed = ada.get(f"{here}/attestations").json()["results"]
    assert oms.SIGNATURE_TYPE in [found["predicate_type"] for found in listed]
    for address in (f"{here}/signature", f"{here}/attestations"):
        assert outsider.get(address).status_code == 404
    assert outsider.post(f"{here}/signature").status_code == 404
    assert ada.post(f"{here}/signature").status_code == 200  # the seal signed it with this key
