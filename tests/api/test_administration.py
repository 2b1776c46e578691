"""Administration by `sluicegate api`, against the real API and a real issuer on loopback."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core import signals
from django.core.handlers.wsgi import WSGIHandler
from django.test import Client as Browser
from django.utils import timezone

from accounts.actions import actor_for, issue_token
from accounts.models import Issuer as IssuerRow
from accounts.models import RoleRule, TokenRule, User, UserSession
from serving.models import Environment, Gateway
from sluicegate.cli import exits, session
from sluicegate.cli.main import main
from sluicegate.client import Client
from tests.support.servers.issuer import AUDIENCE, SECRET, Issuer
from tests.support.worlds.factories import (
    make_environment,
    make_node,
    make_replica,
    make_server,
    make_team,
    make_user,
)
from tests.support.worlds.rollout_setup import release_of, serves

pytestmark = pytest.mark.django_db
Run = Callable[..., tuple[int, Any]]
PASSWORD = "a long pass phrase"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture
def users() -> dict[str, User]:
    make_team("search")
    return {"root": make_user("root", is_admin=True), "ann": make_user("ann", team="search", password=PASSWORD)}


@pytest.fixture
def browsers(users: dict[str, User]) -> tuple[Browser, Browser]:
    """Ann's. They sign in before the command line runs, as its fixture takes away what both of them set up for themselves."""
    made = (Browser(headers={"User-Agent": "Firefox/1"}), Browser())
    for browser in made:
        assert browser.post("/sign-in/", {"username": "ann", "password": PASSWORD}).status_code == 302
    return made


@pytest.fixture
def run(
    users: dict[str, User],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: Any,
    tmp_path: Path,
) -> Run:
    """run("root", "api", "GET", "/issuers") → (exit code, what it printed: JSON, or text with plain=True)."""
    tokens = {name: issue_token(user=user, name="tests", actor=actor_for(user)) for name, user in users.items()}
    settings.STATIC_ROOT = str(tmp_path)
    monkeypatch.setenv("SLUICEGATE_URL", "http://testserver")
    # the test's own connection must outlive each request; Django's test client does the same
    monkeypatch.setattr(signals.request_started, "receivers", [])
    monkeypatch.setattr(signals.request_finished, "receivers", [])
    transport = httpx.WSGITransport(app=WSGIHandler())
    monkeypatch.setattr(session, "Client", functools.partial(Client, transport=transport))

    def command(user: str, *words: Any, plain: bool = False) -> tuple[int, Any]:
        monkeypatch.setenv("SLUICEGATE_TOKEN", tokens[user])
        capsys.readouterr()
        code = main([*map(str, words), *([] if plain else ["--json"])])
        said = capsys.readouterr()
        return code, said.out + said.err if plain else json.loads(said.out or "null")

    return command


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """These lines are on standard input."""
    monkeypatch.setattr("sys.stdin", StringIO("".join(f"{line}\n" for line in lines)))


def test_a_team_and_its_users(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("root", "api", "POST", "/teams", "slug=ads")[0] == exits.OK
    typed(monkeypatch, PASSWORD)
    assert run("root", "api", "POST", "/users", "username=eve", "password=@-")[0] == exits.OK
    assert run("root", "api", "POST", "/users", "username=bot")[0] == exits.OK
    eve, bot = User.objects.get(username="eve"), User.objects.get(username="bot")
    assert eve.check_password(PASSWORD) and not bot.has_usable_password()
    role = ("/teams/ads/members", "username=eve", "role=model_team")
    assert run("ann", "api", "POST", *role)[0] == exits.REFUSED
    assert run("root", "api", "POST", *role)[0] == exits.OK
    assert run("root", "api", "GET", "/users/eve", "--field", "roles.0.role")[1] == "model_team"
    assert [run("root", "api", "DELETE", *role)[0] for _ in range(2)] == [exits.OK, exits.REFUSED]
    assert run("root", "api", "POST", "/users/eve/deactivate", "reason=left")[1]["is_active"] is False
    assert run("root", "api", "POST", "/users/eve/reactivate")[1]["is_active"] is True
    assert run("root", "api", "PATCH", "/users/eve", "is_admin:=true")[1]["is_admin"] is True
    code, said = run("root", "api", "GET", "/users", "--all", "--field", "username", plain=True)
    assert (code, said) == (exits.OK, "ann\nbot\neve\nroot\n")


def test_passwords_are_read_and_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    better = "an even longer phrase"
    typed(monkeypatch, better)
    assert run("root", "api", "PUT", "/users/ann/password", "password=@-")[0] == exits.OK
    ann = User.objects.get(username="ann")
    assert ann.check_password(better) and run("ann", "api", "GET", "/me")[0] == exits.REFUSED
    asked: list[str] = []
    answers = iter(["wrong", PASSWORD])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: asked.append(prompt) or next(answers))
    own = ("/users/root/password", "old_password=@-", "password=@-")
    code, said = run("root", "api", "PUT", *own, plain=True)
    assert code == exits.REFUSED and asked == ["old_password: ", "password: "] and PASSWORD not in said
    typed(monkeypatch, "only one line")
    code, said = run("root", "api", "PUT", *own, plain=True)
    assert code == exits.REFUSED and "no line for password" in said


def test_the_tokens_of_one_name_end_together(run: Run) -> None:
    make_user("robot")
    here = "/users/robot/tokens"
    issued = [run("root", "api", "POST", here, "name=builds", "--field", "token", plain=True) for _ in range(2)]
    assert [code for code, _ in issued] == [exits.OK] * 2 and all(said.startswith("sg_") for _, said in issued)
    run("root", "api", "POST", here, "name=other")
    assert run("root", "api", "DELETE", here, "name=builds")[0] == exits.OK
    rows = run("root", "api", "GET", here)[1]["results"]
    assert sorted((row["name"], row["revoked_at"] is None) for row in rows) == [
        ("builds", False),
        ("builds", False),
        ("other", True),
    ]


def test_the_whole_life_of_an_issuer(run: Run, issuer: Issuer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    secret = f"client_secret=@{tmp_path / 'secret'}"
    fields = ("kind=github", "client_id=c", secret, "is_for_people:=true", f"audience={AUDIENCE}")
    code, made = run("root", "api", "POST", "/issuers", f"url={issuer.url}", *fields)
    assert code == exits.OK and made["has_secret"] and made["is_for_people"] and SECRET not in str(made)
    here = f"/issuers/{made['id']}"
    assert IssuerRow.objects.get().client_secret != "" and run("root", "api", "POST", f"{here}/check")[1]["keys"] == 1
    make_user("robot", team="search")
    rule = tmp_path / "rule.yaml"
    rule.write_text(
        "title: main\nusername: robot\nverbs: [ci]\nclaims: {repository_id: '4711', ref: refs/heads/main}\n"
    )
    code, told = run("root", "api", "POST", f"{here}/token-rules", "--input", rule)
    assert code == exits.OK and told["claims"] == {"repository_id": "4711", "ref": "refs/heads/main"}
    TokenRule.objects.update(claims={"repository_id": "4711", "environment": "*"})
    role = ("role=viewer", "team=*", 'claims:={"groups": "ml"}')
    assert run("root", "api", "POST", f"{here}/role-rules", *role)[1]["role"] == "viewer"
    assert run("root", "api", "POST", f"{here}/identities", "username=ann", "sub=7")[1]["sub"] == "7"
    (shown,) = run("root", "api", "GET", f"{here}/token-rules")[1]["results"]
    assert shown["problems"] and shown["problems"][0]["fix"]
    code, said = run("root", "api", "DELETE", f"/token-rules/{shown['id']}", plain=True)
    assert code == exits.REFUSED and "Next: Add --if-match VERSION" in said and TokenRule.objects.exists()
    version = ("--if-match", TokenRule.objects.get().version)
    assert run("root", "api", "DELETE", f"/token-rules/{shown['id']}", *version)[0] == exits.OK
    for what in ("role-rules", "identities"):
        (one,) = run("root", "api", "GET", f"{here}/{what}")[1]["results"]
        assert run("root", "api", "DELETE", f"/{what}/{one['id']}")[0] == exits.OK
        assert run("root", "api", "GET", f"{here}/{what}")[1]["results"] == []
    assert not TokenRule.objects.exists() and not RoleRule.objects.exists()
    version = ("--if-match", IssuerRow.objects.get().version)
    assert run("root", "api", "PATCH", here, "is_active:=false", *version)[1]["is_active"] is False
    code, said = run("root", "api", "PATCH", here, "colour=red", *version, plain=True)
    assert code == exits.REFUSED and "colour" in said
    assert run("ann", "api", "GET", "/issuers", plain=True)[0] == exits.REFUSED


def test_environments(run: Run) -> None:
    asked = ("slug=canary", "title=Canary", "needs_approval:=true")
    assert run("root", "api", "POST", "/environments", *asked)[0] == exits.OK
    changes = ("needs_passed_report:=true", "needs_approval:=false", "--if-match", "1")
    code, row = run("root", "api", "PATCH", "/environments/canary", *changes)
    assert code == exits.OK and (row["needs_passed_report"], row["needs_approval"]) == (True, False)
    assert Environment.objects.get(slug="canary").title == "Canary"
    assert "canary\tCanary" in run("ann", "environment", "list", plain=True)[1]
    assert "a passed report" in run("ann", "environment", "show", "canary", plain=True)[1]
    title = ("api", "PATCH", "/environments/canary", "title= ", "--if-match", "2")
    assert run("ann", *title)[1]["status"] == 403
    assert "printable characters" in run("root", *title, plain=True)[1]


def test_an_environment_is_taken_out_of_use_as_it_was_read(run: Run) -> None:
    serves(release := release_of())
    environment = make_environment("production")
    make_server(make_replica(release, environment, state="ready"))
    here = "/environments/production/remove"
    code, plan = run("root", "api", "GET", here)
    assert code == exits.OK and any("1 server of" in one for one in plan["says"]) and not plan["is_deleted"]
    remove = ("api", "POST", here, "reason=moved", "--if-match", "*")
    assert run("root", *remove)[1]["code"] == "not_confirmed"
    make_server(make_replica(release_of(release.model), environment, state="ready"))
    digest = f"plan_digest={plan['plan_digest']}"
    assert run("root", *remove, digest)[1]["code"] == "plan_changed"
    assert run("ann", *remove, "is_confirmed:=true")[0] == exits.REFUSED
    assert Environment.objects.get().retired_at is None
    digest = run("root", "api", "GET", here, "--field", "plan_digest")[1]
    assert run("root", *remove, f"plan_digest={digest}")[1]["is_deleted"] is False
    assert run("ann", "environment", "list")[1] == []
    assert "(retired)" in run("ann", "environment", "list", "--retired", plain=True)[1]
    assert "(retired)" in run("ann", "environment", "show", "production", plain=True)[1]


def test_an_environment_is_brought_back(run: Run) -> None:
    serves(release_of())
    assert (
        run("root", "api", "POST", "/environments/production/remove", "is_confirmed:=true", "--if-match", "*")[0] == 0
    )
    make_node()
    assert run("root", "api", "POST", "/environments/production/restore", "--if-match", "*")[0] == exits.OK
    assert len(run("ann", "environment", "list")[1]) == 1


def test_sessions(browsers: tuple[Browser, Browser], run: Run) -> None:
    here = "/users/ann/sessions"
    rows = run("ann", "api", "GET", here)[1]["results"]
    assert len(rows) == 2 and {row["issuer"] for row in rows} == {None}
    assert run("ann", "api", "GET", "/users/root/sessions")[0] == exits.REFUSED
    assert run("root", "api", "DELETE", f"{here}/{rows[0]['id']}")[0] == exits.OK
    assert UserSession.objects.count() == 1
    assert run("ann", "api", "DELETE", f"{here}/{rows[1]['id']}")[0] == exits.OK
    assert run("ann", "api", "DELETE", f"{here}/{rows[1]['id']}")[0] == exits.REFUSED
    assert [browser.get("/models/").status_code for browser in browsers] == [302, 302]


def test_a_gateway_and_its_configuration(run: Run) -> None:
    make_environment("production")
    where = ("environment=production", "http_url=http://127.0.0.1:80", "grpc_address=127.0.0.1:81")
    code, said = run("root", "api", "POST", "/gateways", "name=eu-1", *where, "--field", "envoy", plain=True)
    assert code == exits.OK and json.loads(said)["node"]["id"] == "eu-1"
    code, said = run("root", "api", "POST", "/gateways", "name=eu-1", *where, "--field", "envvoy", plain=True)
    assert code == exits.REFUSED and "eu-1" in said and "The answer has no field envvoy." in said
    code, told = run("root", "api", "POST", "/gateways", "name=eu-1", *where, "--field", "envvoy")
    assert code == exits.REFUSED and told["answer"]["envoy"]["node"]["id"] == "eu-1"
    Gateway.objects.update(seen_at=timezone.now() + timedelta(hours=1))
    drain = ("api", "POST", "/gateways/eu-1/drain", "--if-match", "*")
    code, said = run("root", *drain, plain=True)  # the only one
    assert code == exits.REFUSED and "sluicegate api POST /gateways/eu-1/drain is_confirmed:=true" in said
    assert run("root", *drain, "is_confirmed:=true")[1]["state"] == "drained"
