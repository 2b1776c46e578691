"""People over REST and on the command line: shut out, let in, passwords changed, roles and tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.core.access import Role
from accounts.models import User
from sluicegate.cli import exits
from tests.api.cli_world import Run, run, tokens  # noqa: F401  # fixtures
from tests.api.problems import assert_problem
from tests.support.worlds.factories import make_model, make_team, make_user

# ruff: noqa: F811 - fixtures are named as they are used
pytestmark = pytest.mark.django_db
Api = Callable[..., APIClient]
GOOD, BETTER = "a long pass phrase", "an even longer phrase"


@pytest.fixture
def root(api: Api) -> APIClient:
    return api(make_user("root", is_admin=True, password=GOOD))


def test_who_there_is(root: APIClient, api: Api) -> None:
    anna = api(make_user("anna", team="search", role=Role.CI, password=GOOD))
    mine = {
        "username": "anna", "is_admin": False, "is_active": True, "has_password": True, "last_login": None,
        "roles": [{"team": "search", "role": "ci"}],
    }  # fmt: skip
    assert anna.get("/api/v1/users/anna").json() == mine
    assert [row["username"] for row in root.get("/api/v1/users").json()["results"]] == ["anna", "root"]
    make_team("ads")
    assert [row["slug"] for row in anna.get("/api/v1/teams").json()["results"]] == ["search"]
    assert [row["slug"] for row in root.get("/api/v1/teams").json()["results"]] == ["ads", "search"]
    assert api(make_user("norole")).get("/api/v1/teams").json()["results"] == []
    User.objects.filter(username="norole").delete()
    assert_problem(anna.get("/api/v1/users"), 403, "forbidden")
    assert_problem(anna.get("/api/v1/users/root"), 403, "forbidden")
    assert_problem(root.get("/api/v1/users/nobody"), 404, "no_such_user")
    assert anna.get("/api/v1/teams/search/members").json()["results"] == [
        {"username": "anna", "role": "ci", "team": "search"}
    ]


def test_shut_out_and_let_in(root: APIClient, api: Api) -> None:
    anna = api(make_user("anna", team="search"))
    told = root.post("/api/v1/users/anna/deactivate", {"reason": "left"}, format="json")
    assert (told.status_code, told.json()["is_active"]) == (200, False)
    assert_problem(anna.get("/api/v1/me"), 401, "token_revoked")
    assert root.post("/api/v1/users/anna/reactivate", {}, format="json").json()["is_active"] is True
    assert_problem(anna.get("/api/v1/me"), 401, "token_revoked")
    assert_problem(root.post("/api/v1/users/root/deactivate", {}, format="json"), 409, "last_administrator")
    assert_problem(root.patch("/api/v1/users/root", {"is_admin": False}, format="json"), 409, "last_administrator")
    assert root.patch("/api/v1/users/anna", {"is_admin": True}, format="json").json()["is_admin"] is True


def test_a_role_is_rolled_back_in(root: APIClient, api: Api) -> None:
    anna = api(make_user("anna", team="search"))
    assert anna.get("/api/v1/teams/search/members").status_code == 200
    here = "/api/v1/teams/search/members?username=anna&role=model_team"
    assert root.delete(here).status_code == 204
    assert_problem(root.delete(here), 404, "no_such_member")
    assert_problem(anna.get("/api/v1/teams/search/members"), 403, "forbidden")


def test_one_changes_ones_own_password_by_the_old_one(root: APIClient, api: Api) -> None:
    anna = api(make_user("anna", password=GOOD))
    here = "/api/v1/users/anna/password"
    lacks = assert_problem(anna.put(here, {"password": BETTER}, format="json"), 422, "invalid")
    assert lacks["errors"][0]["field"] == "old_password"
    wrong = anna.put(here, {"password": BETTER, "old_password": "wrong"}, format="json")
    assert assert_problem(wrong, 422, "invalid")["errors"][0]["field"] == "old_password"
    weak = anna.put(here, {"password": "password12", "old_password": GOOD}, format="json")
    assert assert_problem(weak, 422, "invalid")["errors"][0]["field"] == "password"
    assert anna.put(here, {"password": BETTER, "old_password": GOOD}, format="json").status_code == 204
    assert_problem(anna.get("/api/v1/me"), 401, "token_revoked")
    assert root.put(here, {"password": GOOD}, format="json").status_code == 204
    assert_problem(root.put("/api/v1/users/root/password", {"password": BETTER}, format="json"), 422, "invalid")


def test_a_token_has_the_end_that_was_asked_for(root: APIClient) -> None:
    make_user("ci")
    ask = {"name": "builds", "expires_at": "2020-01-01T00:00:00Z"}
    assert_problem(root.post("/api/v1/users/ci/tokens", ask, format="json"), 422, "invalid")
    assert root.post("/api/v1/users/ci/tokens", {"name": "builds"}, format="json").status_code == 201
    row = root.get("/api/v1/users/ci/tokens").json()["results"][0]
    assert row["expires_at"] > timezone.now().isoformat()


def test_options_is_no_crash(root: APIClient) -> None:
    for path in ("/api/v1/rollouts", "/api/v1/models", "/api/v1/users", "/api/v1/tokens"):
        assert_problem(root.options(path), 405, "method_not_allowed")


def test_tokens_with_a_scope(root: APIClient, api: Api) -> None:
    team = make_team("search")
    for slug in ("a", "b"):
        make_model(slug, team=team)
    anna = api(make_user("anna", team="search"))
    asked = {"name": "deploy", "verbs": ["release.push"], "models": ["a"]}
    clear = anna.post("/api/v1/users/anna/tokens", asked, format="json").json()["token"]
    narrow = APIClient(headers={"Authorization": f"Bearer {clear}"})
    assert [row["slug"] for row in narrow.get("/api/v1/models").json()["results"]] == ["a"]
    assert narrow.get("/api/v1/models/a").status_code == 200
    assert_problem(narrow.get("/api/v1/models/b"), 404, "no_such_model")
    edited = narrow.patch("/api/v1/models/a", {"title": "A"}, format="json", headers={"If-Match": "1"})
    problem = assert_problem(edited, 403, "out_of_scope")
    assert "lacks the verb model.edit" in problem["detail"] and problem["scope"]["models"] == ["a"]
    assert_problem(narrow.post("/api/v1/users/anna/tokens", {"name": "x"}, format="json"), 403, "out_of_scope")
    assert_problem(narrow.get("/api/v1/users/anna/tokens"), 403, "out_of_scope")
    row = anna.get("/api/v1/users/anna/tokens").json()["results"][0]
    assert (row["verbs"], row["models"]) == (["read", "release.push"], ["a"])
    again = narrow.post(f"/api/v1/users/anna/tokens/{row['id']}/rotate", {"overlap_s": 0}, format="json")
    assert_problem(narrow.get("/api/v1/models/a"), 401, "token_rotated")
    narrow = APIClient(headers={"Authorization": f"Bearer {again.json()['token']}"})
    assert narrow.get("/api/v1/models/a").status_code == 200
    assert narrow.delete(f"/api/v1/users/anna/tokens/{row['id']}").status_code == 204
    assert_problem(narrow.get("/api/v1/models/a"), 401, "token_revoked")
    for wrong in ({"verbs": ["all"]}, {"models": []}, {"models": ["a b"]}):
        assert_problem(anna.post("/api/v1/users/anna/tokens", wrong, format="json"), 422, "invalid")
    assert_problem(root.delete(f"/api/v1/users/root/tokens/{row['id']}"), 404, "no_such_token")
    assert_problem(root.post("/api/v1/users/anna/tokens/99/rotate", {}, format="json"), 404, "no_such_token")


def test_tokens_on_the_command_line(run: Run, tokens: dict[str, str]) -> None:
    code, made = run(
        "ada", "token", "create", "--scope", "ci", "--model", "search-*", "--days", "7", "--name", "deploy"
    )
    assert code == exits.OK
    tokens["deploy"] = made["token"]
    assert run("deploy", "model", "list") == (exits.OK, [])
    assert run("deploy", "token", "list")[0] == exits.REFUSED
    row = next(row for row in run("ada", "token", "list")[1] if row["name"] == "deploy")
    assert row["models"] == ["search-*"] and "release.push" in row["verbs"] and row["last_used_at"]
    code, made = run("ada", "api", "POST", f"/users/ada/tokens/{row['id']}/rotate", "overlap_s:=0")
    assert code == exits.OK and run("deploy", "model", "list")[0] == exits.REFUSED
    tokens["deploy"] = made["token"]
    assert run("deploy", "model", "list")[0] == exits.OK
    assert run("ada", "token", "revoke", str(row["id"]))[0] == exits.OK
    assert run("deploy", "model", "list")[0] == exits.REFUSED
    assert run("ada", "token", "list", "--user", "robot")[0] == exits.REFUSED
    assert run("admin", "token", "list", "--user", "robot")[0] == exits.OK
    assert run("ada", "token", "create", "--scope", "everything")[0] == exits.REFUSED


def test_a_role_in_every_team(root: APIClient) -> None:
    make_user("mara")
    make_team("search")
    given = root.post("/api/v1/teams/*/members", {"username": "mara", "role": "release_manager"}, format="json")
    assert given.json() == {"username": "mara", "role": "release_manager", "team": "*"}
    for team in ("search", "*"):
        assert root.get(f"/api/v1/teams/{team}/members").json()["results"] == [given.json()]
    assert root.get("/api/v1/users/mara").json()["roles"] == [{"team": "*", "role": "release_manager"}]
    taken = root.delete("/api/v1/teams/*/members?username=mara&role=release_manager")
    assert (taken.status_code, root.get("/api/v1/users/mara").json()["roles"]) == (204, [])
    assert_problem(
        root.post("/api/v1/teams/*/members", {"username": "mara", "role": "ci"}, format="json"), 422, "invalid"
    )
