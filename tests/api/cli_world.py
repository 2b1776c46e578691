"""The command line against the real API, in process: people with tokens, a model, and release folders to push."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from django.core import signals
from django.core.handlers.wsgi import WSGIHandler

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts import actions as accounts
from accounts.core.access import Actor
from sluicegate.cli import exits, session
from sluicegate.cli.main import main
from sluicegate.client import Client
from tests.support.worlds.model_files import onnx_file

GRAPH = onnx_file("graph one")
IMAGE = f"local/triton@sha256:{'0' * 64}"
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def tokens() -> dict[str, str]:
    """A token by user: ada (model team), robot (CI), mara (release manager), admin."""
    system = Actor.system("tests")
    accounts.create_team(actor=system, slug="demo", title="Demo")
    issued = {}
    for name, role in (("ada", "model_team"), ("robot", "ci"), ("mara", "release_manager"), ("admin", "")):
        user = accounts.create_user(actor=system, username=name, is_admin=name == "admin")
        if role:
            accounts.grant_role(actor=system, username=name, team="demo", role=role)
        issued[name] = accounts.issue_token(user=user, name="tests", actor=system)
    return issued


@pytest.fixture
def run(
    tokens: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: Any,
    tmp_path: Path,
) -> Run:
    """run("ada", "model", "list") → (exit code, the JSON that it printed, or the text with plain=True)."""
    settings.BLOB_STORE, settings.STATIC_ROOT = str(tmp_path / "blobs"), str(tmp_path)
    monkeypatch.setenv("SLUICEGATE_URL", "http://testserver")
    # the test's own connection must outlive each request; Django's test client does the same
    monkeypatch.setattr(signals.request_started, "receivers", [])
    monkeypatch.setattr(signals.request_finished, "receivers", [])
    transport = httpx.WSGITransport(app=WSGIHandler())
    monkeypatch.setattr(session, "Client", functools.partial(Client, transport=transport))

    def command(user: str, *words: str, plain: bool = False) -> tuple[int, Any]:
        monkeypatch.setenv("SLUICEGATE_TOKEN", tokens[user])
        capsys.readouterr()
        code = main([*words, *([] if plain else ["--json"])])
        out = capsys.readouterr().out
        return code, out if plain else json.loads(out) if out.strip() else None

    return command


def model_file(folder: Path) -> Path:
    path = folder / "model.yaml"
    contract = {
        "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
        "outputs": [{"name": "probabilities", "data_type": "FP32", "dims": [2]}],
    }
    path.write_text(yaml.safe_dump({"slug": "sentiment", "team": "demo", "contract": contract}))
    return path


def release_folder(folder: Path, *, graph: bytes = GRAPH, code: bool = False, **changes: Any) -> Path:
    (folder / "artifact").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    (folder / "artifact" / "model.onnx").write_bytes(graph)
    (folder / "tokenizer" / "tokenizer.json").write_bytes(b"{}")
    if code:
        (folder / "artifact" / "model.py").write_text("class TritonPythonModel: ...\n")
    document = {
        "model": "sentiment",
        "runtime": {"image": IMAGE, "server": "triton", "backend": "python" if code else "sluicegate-onnx"},
        "serving": {
            "max_batch_size": 16,
            "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
            "outputs": [{"name": "probabilities", "data_type": "FP32", "dims": [2]}],
        },
        **changes,
    }
    (folder / "release.yaml").write_text(yaml.safe_dump(document))
    return folder


@pytest.fixture
def model(run: Run, tmp_path: Path) -> None:
    code, created = run("ada", "model", "create", str(model_file(tmp_path)))
    assert (code, created["slug"]) == (exits.OK, "sentiment")
