"""`sluicegate webhook …` against the real API and a real receiver."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core import signals
from django.core.handlers.wsgi import WSGIHandler

from accounts.actions import actor_for, issue_token
from accounts.core.access import Role
from sluicegate.cli import exits, session
from sluicegate.cli.main import main
from sluicegate.client import Client
from tests.support.servers.receiver import Receiver
from tests.support.worlds.factories import make_model, make_team, make_user

pytestmark = pytest.mark.django_db
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOKS_ALLOW_PRIVATE = True
    settings.WEBHOOK_TIMEOUT_S = 0.5
    with Receiver() as running:
        yield running


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Any, tmp_path: Path) -> Run:
    """run("root", "test", "1") → (exit code, what it printed: JSON, or text with plain=True)."""
    make_model("sentiment", team=make_team("search"))
    users = {"root": make_user("root", is_admin=True), "ada": make_user("ada", team="search", role=Role.MODEL_TEAM)}
    tokens = {name: issue_token(user=user, name="tests", actor=actor_for(user)) for name, user in users.items()}
    settings.STATIC_ROOT = str(tmp_path)
    monkeypatch.setenv("SLUICEGATE_URL", "http://testserver")
    # the test's own connection must outlive each request; Django's test client does the same
    monkeypatch.setattr(signals.request_started, "receivers", [])
    monkeypatch.setattr(signals.request_finished, "receivers", [])
    transport = httpx.WSGITransport(app=WSGIHandler())
    monkeypatch.setattr(session, "Client", functools.partial(Client, transport=transport))

    def command(user: str, *words: str, plain: bool = False) -> tuple[int, Any]:
        monkeypatch.setenv("SLUICEGATE_TOKEN", tokens[user])
        capsys.readouterr()
        code = main(["webhook", *words, *([] if plain else ["--json"])])
        said = capsys.readouterr()
        return code, said.out + said.err if plain else json.loads(said.out)

    return command


def test_a_webhook_is_created_and_tested(run: Run, receiver: Receiver) -> None:
    code, made = run("root", "create", receiver.url, "--team", "search", "--title", "on call")
    assert (code, made["verbs"]) == (exits.OK, ["rollout.*"])
    code, sent = run("ada", "test", str(made["id"]))
    assert (code, sent["state"]) == (exits.OK, "delivered") and receiver.got[0].is_signed_with(made["secret"])


def test_a_test_that_does_not_arrive_is_exit_1_and_says_why(run: Run, receiver: Receiver) -> None:
    receiver.always = 500
    code, made = run("root", "create", receiver.url, "--verb", "*", "--verb", "rollout.stuck", plain=True)
    assert code == exits.OK and "Secret, shown this once: whsec_" in made and "Next: sluicegate webhook test" in made
    code, text = run("root", "test", made.split()[1], plain=True)
    assert code == exits.FAILED and text == "It did not arrive: The receiver answered 500 Internal Server Error.\n"


def test_refusals_are_exit_3_with_a_next_step(run: Run, receiver: Receiver) -> None:
    code, text = run("ada", "create", receiver.url, "--team", "search", plain=True)
    assert code == exits.REFUSED and "Name a public one; or an administrator names it" in text
    code, text = run("ada", "create", "a@example.com", "--email", "--team", "search", plain=True)
    assert code == exits.REFUSED and text.count("An administrator sets SLUICEGATE_EMAIL_URL") == 1
    code, text = run("ada", "test", "999", plain=True)
    assert code == exits.REFUSED and "List them" in text


def test_pagerduty_s_key_comes_from_a_file_and_is_not_printed(run: Run, receiver: Receiver, tmp_path: Path) -> None:
    key = "0123456789abcdef0123456789ABCDEF"
    (tmp_path / "key").write_text(f"{key}\n")
    words = ["--format", "pagerduty", "--routing-key-file", str(tmp_path / "key"), "--verb", "rollout.stuck"]
    code, made = run("root", "create", receiver.url, *words)
    assert code == exits.OK and (made["format"], made["secret"]) == ("pagerduty", "") and key not in json.dumps(made)
    assert run("root", "test", str(made["id"]))[0] == exits.OK
    assert receiver.got[0].said["routing_key"] == key
    code, text = run(
        "root", "create", "--format", "pagerduty", "--routing-key-file", str(tmp_path / "none"), plain=True
    )
    assert code != exits.OK and "cannot be read" in text
