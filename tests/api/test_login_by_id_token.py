"""`sluicegate login --oidc-token`: a CI job without a stored secret, by a file, standard input, GitLab's variable or GitHub's endpoint."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core import signals
from django.core.handlers.wsgi import WSGIHandler

from sluicegate.cli import session
from sluicegate.cli.main import main
from sluicegate.client import Client
from tests.support.servers.issuer import AUDIENCE, Issuer
from tests.support.worlds.issuer_setup import configured, rule_for

pytestmark = pytest.mark.django_db
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        rule_for(configured(running))
        yield running


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    for name in ("SLUICEGATE_TOKEN", "SLUICEGATE_ID_TOKEN", "SLUICEGATE_AUDIENCE", "ACTIONS_ID_TOKEN_REQUEST_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLUICEGATE_URL", "http://testserver")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(signals.request_started, "receivers", [])
    monkeypatch.setattr(signals.request_finished, "receivers", [])
    transport = httpx.WSGITransport(app=WSGIHandler())
    monkeypatch.setattr(session, "Client", functools.partial(Client, transport=transport))

    def call(*arguments: str) -> tuple[int, Any]:
        code = main([*arguments, "--json"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out.strip() else {}

    return call


def is_signed_in(tmp_path: Path) -> bool:
    saved = json.loads((tmp_path / "sluicegate" / "token").read_text())
    token: str = saved["http://testserver"]
    return token.startswith("sg_")


def test_by_a_file(issuer: Issuer, run: Run, tmp_path: Path) -> None:
    (tmp_path / "id").write_text(issuer.github_token() + "\n")
    code, told = run("login", "--oidc-token", str(tmp_path / "id"))
    assert (code, told["username"]) == (0, "robot") and is_signed_in(tmp_path) and "sg_" not in json.dumps(told)
    assert run("model", "list")[0] == 0


def test_by_standard_input_and_a_named_rule(
    issuer: Issuer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(issuer.github_token()))
    assert run("login", "--oidc-token", "-", "--rule", "999999")[0] == 3
    monkeypatch.setattr("sys.stdin", io.StringIO(issuer.github_token()))
    assert run("login", "--oidc-token", "-")[0] == 0


def test_by_gitlabs_variable(issuer: Issuer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_ID_TOKEN", issuer.github_token())
    assert run("login", "--oidc-token", "env")[0] == 0 and is_signed_in(tmp_path)


def test_as_github_gives_it(issuer: Issuer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{issuer.url}/actions?api-version=2")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-job")
    assert run("login", "--oidc-token", "env")[0] == 3, "made for the server's address, which is not the audience here"
    assert run("login", "--oidc-token", "env", "--audience", AUDIENCE)[0] == 0
    monkeypatch.setenv("SLUICEGATE_AUDIENCE", AUDIENCE)
    assert run("login", "--oidc-token", "env")[0] == 0 and is_signed_in(tmp_path)
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-another")
    assert run("login", "--oidc-token", "env")[0] == 3
    issuer.leave()
    assert run("login", "--oidc-token", "env")[0] == 2


@pytest.mark.parametrize("source", ["env", "/nowhere/at/all", "/dev/null"])
def test_there_is_none(issuer: Issuer, run: Run, source: str) -> None:
    assert run("login", "--oidc-token", source)[0] == 3
