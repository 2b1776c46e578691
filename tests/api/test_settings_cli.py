"""`sluicegate issuer`, `environment` and `session` against the real API, and a real issuer on loopback."""

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
from django.test import Client as Browser

from accounts.actions import actor_for, issue_token
from accounts.models import Issuer as IssuerRow
from accounts.models import RoleRule, TokenRule, User, UserSession
from serving.models import Environment
from sluicegate.cli import environment, exits, session
from sluicegate.cli.main import main
from sluicegate.client import Client
from tests.factories import make_deployment, make_environment, make_node, make_server, make_team, make_user
from tests.issuer import AUDIENCE, SECRET, Issuer
from tests.rollout_setup import release_of, serves

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
    """run("root", "issuer", "list") → (exit code, what it printed: JSON, or text with plain=True)."""
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
        return code, said.out + said.err if plain else json.loads(said.out)

    return command


def test_the_whole_life_of_an_issuer(run: Run, issuer: Issuer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    words = ["--kind", "github", "--client-id", "c", "--client-secret-file", tmp_path / "secret", "--for-people"]
    code, made = run("root", "issuer", "create", issuer.url, *words, "--audience", AUDIENCE)
    assert code == exits.OK and made["has_secret"] and made["is_for_people"] and SECRET not in str(made)
    number = made["id"]
    assert run("root", "issuer", "check", number)[1]["keys"] == 1
    make_user("robot", team="search")
    claims = ["--claim", "repository_id=4711", "--claim", "ref=refs/heads/main"]
    code, rule = run("root", "issuer", "rule", number, "--title", "main", *claims, "--robot", "robot", "--may", "ci")
    assert code == exits.OK and rule["claims"] == {"repository_id": "4711", "ref": "refs/heads/main"}
    TokenRule.objects.update(claims={"repository_id": "4711", "environment": "*"})
    role = ["--claim", "groups=ml", "--role", "viewer", "--team", "*"]
    assert run("root", "issuer", "role", number, *role)[0] == exits.OK
    assert run("root", "issuer", "person", number, "ann", "7")[0] == exits.OK
    code, said = run("root", "issuer", "show", number, plain=True)
    assert code == exits.OK and "gives no token" in said and "groups=ml → viewer in *" in said and "7 is ann" in said
    for what in ("rule", "role", "person"):
        where = {"rule": "token_rules", "role": "role_rules", "person": "identities"}[what]
        one = run("root", "issuer", "show", number)[1][where][0]["id"]
        code, said = run("root", "issuer", "remove", what, one, plain=True)
        assert code == exits.REFUSED and "--yes" in said
        assert run("root", "issuer", "remove", what, one, "--yes")[0] == exits.OK
    assert not TokenRule.objects.exists() and not RoleRule.objects.exists()
    code, said = run("root", "issuer", "change", number, "--off", plain=True)
    assert code == exits.REFUSED and IssuerRow.objects.get().is_active
    assert run("root", "issuer", "change", number, "--off", "--yes")[1]["is_active"] is False
    assert "no" in run("root", "issuer", "list", plain=True)[1]


def test_values_of_a_file_and_options_before_them(run: Run, issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "issuer.yaml"
    file.write_text("title: From the file\naudience: https://a.example\nkind: gitlab\n")
    code, made = run("root", "issuer", "create", issuer.url, "--file", file, "--title", "By option")
    assert code == exits.OK and (made["title"], made["kind"]) == ("By option", "gitlab")
    file.write_text("colour: red\n")
    code, said = run("root", "issuer", "change", made["id"], "--file", file, plain=True)
    assert code == exits.REFUSED and "colour" in said
    assert run("root", "issuer", "change", made["id"], plain=True)[0] == exits.REFUSED
    assert run("root", "issuer", "rule", made["id"], "--claim", "nothing", plain=True)[0] == exits.REFUSED
    assert run("ann", "issuer", "list", plain=True)[0] == exits.REFUSED


def test_environments(run: Run, tmp_path: Path) -> None:
    assert run("root", "environment", "create", "canary", "--title", "Canary", "--needs-approval")[0] == exits.OK
    file = tmp_path / "canary.json"
    file.write_text('{"needs_passed_report": true}')
    code, row = run("root", "environment", "change", "canary", "--file", file, "--no-needs-approval")
    assert code == exits.OK and (row["needs_passed_report"], row["needs_approval"]) == (True, False)
    assert Environment.objects.get(slug="canary").title == "Canary"
    assert "canary\tCanary" in run("ann", "environment", "list", plain=True)[1]
    assert "a passed report" in run("ann", "environment", "show", "canary", plain=True)[1]
    assert run("ann", "environment", "change", "canary", "--title", "x", plain=True)[0] == exits.REFUSED
    assert "printable characters" in run("root", "environment", "change", "canary", "--title", " ", plain=True)[1]


def test_an_environment_is_taken_out_of_use_and_brought_back(run: Run) -> None:
    run("root", "environment", "create", "canary")
    assert "Nothing was done; add --yes." in run("root", "environment", "remove", "canary", plain=True)[1]
    code, plan = run("root", "environment", "remove", "canary")
    assert code == exits.OK and plan["is_deleted"] and plan["is_done"] is False and Environment.objects.exists()
    assert run("ann", "environment", "remove", "canary", "--yes", plain=True)[0] == exits.REFUSED
    code, gone = run("root", "environment", "remove", "canary", "--yes")
    assert code == exits.OK and gone["is_deleted"] and gone["is_done"] is True and not Environment.objects.exists()
    serves(release_of())
    code, retired = run("root", "environment", "remove", "production", "--yes", "--reason", "moved")
    assert code == exits.OK and not retired["is_deleted"]
    assert run("ann", "environment", "list")[1] == []
    assert "(retired)" in run("ann", "environment", "list", "--retired", plain=True)[1]
    assert "(retired)" in run("ann", "environment", "show", "production", plain=True)[1]
    make_node()
    assert "in use again" in run("root", "environment", "restore", "production", plain=True)[1]
    assert "in use already; nothing was done" in run("root", "environment", "restore", "production", plain=True)[1]
    assert len(run("ann", "environment", "list")[1]) == 1


def test_what_goes_with_an_environment_is_told_and_asked_before(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    serves(release := release_of())
    environment = make_environment("production")
    make_server(make_deployment(release, environment, state="ready"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    def removed(answer: Callable[[str], str]) -> tuple[int, str]:
        monkeypatch.setattr("builtins.input", answer)
        return run("root", "environment", "remove", "production", plain=True)

    def while_one_comes(question: str) -> str:
        make_server(make_deployment(release_of(release.model), environment, state="ready"))
        return "yes"

    would_go = f"1 server of {release.model.slug} r{release.number} is drained and ended."
    code, said = removed(lambda question: "no")
    assert code == exits.REFUSED and would_go in said and "Nothing was done." in said
    code, said = removed(while_one_comes)
    assert code == exits.REFUSED and "has changed since it was read" in said
    assert not Environment.objects.exclude(retired_at=None).exists()
    code, said = removed(lambda question: "yes" if "is taken out of use. Go on?" in question else "no")
    assert code == exits.OK and said.index(would_go) < said.index("production is retired.")


def test_what_nobody_read_goes_with_an_environment_whatever_comes_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves(release := release_of())
    production = make_environment("production")
    make_server(make_deployment(release, production, state="ready"))
    agreed = environment.is_agreed

    def while_one_comes(*said: Any) -> bool:
        make_server(make_deployment(release_of(release.model), production, state="ready"))
        return agreed(*said)

    monkeypatch.setattr(environment, "is_agreed", while_one_comes)
    assert run("root", "environment", "remove", "production", "--yes")[0] == exits.OK
    assert Environment.objects.exclude(retired_at=None).exists()


def test_sessions(browsers: tuple[Browser, Browser], run: Run) -> None:
    code, rows = run("ann", "session", "list")
    assert code == exits.OK and len(rows) == 2 and {row["issuer"] for row in rows} == {None}
    assert "password" in run("root", "session", "list", "--user", "ann", plain=True)[1]
    assert run("ann", "session", "list", "--user", "root", plain=True)[0] == exits.REFUSED
    assert run("ann", "session", "revoke", rows[0]["id"], plain=True)[0] == exits.REFUSED
    assert UserSession.objects.count() == 2
    assert run("root", "session", "revoke", rows[0]["id"], "--user", "ann", "--yes")[0] == exits.OK
    assert run("ann", "session", "revoke", rows[1]["id"], "--yes")[0] == exits.OK
    assert run("ann", "session", "revoke", rows[1]["id"], "--yes", plain=True)[0] == exits.REFUSED
    assert [browser.get("/models/").status_code for browser in browsers] == [302, 302]


@pytest.mark.parametrize("command", ["issuer", "environment", "session"])
def test_help_has_examples_that_are_right(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    from sluicegate.cli.main import whole_parser

    main([command, "--help"])
    told = capsys.readouterr().out.partition("examples:")[2].strip().splitlines()
    assert len(told) >= 3
    for line in told:
        whole_parser().parse_args(shlex.split(line, comments=True)[1:])
