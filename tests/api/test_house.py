"""Rules of the whole API: who asks, versions, pages of lists, and the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import transaction
from django.test import RequestFactory
from rest_framework import exceptions
from rest_framework.test import APIClient

from accounts import actions
from accounts.api.requests import actor_of, expected_version
from accounts.core.access import Actor, Role
from accounts.core.addresses import API
from accounts.models import User
from ledger.actions import append_event
from ledger.core import errors
from sluicegate.checks import refuse_unsafe_start
from tests.api.problems import assert_problem
from tests.support.house.api_schema import bare_objects
from tests.support.house.architecture import sources
from tests.support.worlds.factories import make_model, make_team, make_user

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]
Api = Callable[..., APIClient]


class TestWhoAsks:
    def test_nobody_is_asked_to_sign_in(self, api: Api) -> None:
        response = api().get("/api/v1/me")
        assert_problem(response, 401, "not_authenticated")
        assert response["WWW-Authenticate"] == 'Bearer realm="sluicegate"'

    def test_a_token_says_who(self, api: Api) -> None:
        anna = make_user("anna", team="search", role=Role.CI)
        assert api(anna).get("/api/v1/me").json() == {
            "username": "anna", "is_admin": False, "roles": [{"team": "search", "role": "ci"}],
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("header", "code"),
        [
            ("Bearer sg_wrong", "no_such_token"),
            ("Bearer", "authentication_failed"),
            ("Bearer a b", "authentication_failed"),
        ],
    )
    def test_a_wrong_token_is_refused(self, header: str, code: str) -> None:
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=header)
        response = client.get("/api/v1/me")
        assert_problem(response, 401, code)
        assert response["WWW-Authenticate"].startswith("Bearer")

    def test_a_password_gives_a_token(self, api: Api) -> None:
        make_user("anna", password="correct horse")
        response = api().post(
            "/api/v1/tokens", {"username": "anna", "password": "correct horse", "name": "laptop"}, format="json"
        )
        assert response.status_code == 201
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {response.json()['token']}")
        assert client.get("/api/v1/me").json()["username"] == "anna"

    @pytest.mark.parametrize(
        "body", [{"username": "anna", "password": "wrong"}, {"username": "bob", "password": "correct horse"}]
    )
    def test_a_wrong_password_gives_none_and_does_not_say_which_part_was_wrong(
        self, api: Api, body: dict[str, str]
    ) -> None:
        make_user("anna", password="correct horse")
        response = api().post("/api/v1/tokens", body, format="json")
        assert (
            assert_problem(response, 401, "login_failed")["detail"] == "That name and password do not belong together."
        )

    def test_a_page_session_must_bring_its_csrf_token(self) -> None:
        client = APIClient(enforce_csrf_checks=True)
        client.force_login(make_user("root", is_admin=True))
        assert client.get("/api/v1/me").status_code == 200
        assert_problem(client.post("/api/v1/teams", {"slug": "search"}, format="json"), 403, "permission_denied")

    def test_nobody_has_no_actor(self) -> None:
        request = RequestFactory().get("/")
        request.user = None  # type: ignore[assignment]
        with pytest.raises(exceptions.NotAuthenticated):
            actor_of(request)


class TestPeople:
    def test_an_administrator_makes_a_team_a_user_and_a_robots_token(self, api: Api) -> None:
        root = api(make_user("root", is_admin=True))
        assert root.post("/api/v1/teams", {"slug": "search", "title": "Search"}, format="json").status_code == 201
        body = {"username": "ci", "roles": [{"team": "search", "role": "ci"}]}
        assert root.post("/api/v1/users", body, format="json").json() == {**body, "is_admin": False}
        token = root.post("/api/v1/users/ci/tokens", {"name": "builds"}, format="json").json()["token"]
        robot = APIClient()
        robot.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
        assert robot.get("/api/v1/me").json()["roles"] == [{"team": "search", "role": "ci"}]
        assert [team["slug"] for team in root.get("/api/v1/teams").json()["results"]] == ["search"]

    def test_a_revoked_token_lets_nobody_in(self, api: Api) -> None:
        user = make_user("ada", team="search")
        token = actions.issue_token(user=user, name="laptop", actor=actions.actor_for(user))
        hers = {"HTTP_AUTHORIZATION": f"Bearer {token}"}
        client = APIClient()
        assert [row["name"] for row in client.get("/api/v1/users/ada/tokens", **hers).data["results"]] == ["laptop"]
        assert_problem(client.delete("/api/v1/users/ada/tokens?name=desktop", **hers), 404, "no_such_token")
        assert client.delete("/api/v1/users/ada/tokens?name=laptop", **hers).status_code == 204
        assert client.get("/api/v1/me", **hers).status_code == 401

    def test_others_do_not(self, api: Api) -> None:
        anna = api(make_user("anna", team="search"))
        body = assert_problem(anna.post("/api/v1/teams", {"slug": "ads"}, format="json"), 403, "forbidden")
        assert body["verb"] == "administer"
        assert_problem(anna.post("/api/v1/users", {"username": "bob"}, format="json"), 403, "forbidden")
        assert_problem(anna.post("/api/v1/users/bob/tokens", {"name": "x"}, format="json"), 403, "forbidden")

    def test_a_user_with_a_role_in_no_team_is_not_half_created(self, api: Api) -> None:
        root = api(make_user("root", is_admin=True))
        body = {"username": "ci", "roles": [{"team": "nowhere", "role": "ci"}]}
        found = assert_problem(root.post("/api/v1/users", body, format="json"), 422, "invalid")
        assert found["errors"][0]["field"] == "team"
        assert not User.objects.filter(username="ci").exists()


class TestIfMatch:
    @pytest.mark.parametrize("header", ["3", '"3"', 'W/"3"', " 3 "])
    def test_a_version_is_read(self, header: str) -> None:
        assert expected_version(RequestFactory().post("/", headers={"If-Match": header})) == 3

    def test_none_is_asked_for(self) -> None:
        with pytest.raises(errors.PreconditionRequired, match="Send If-Match with the version you saw"):
            expected_version(RequestFactory().post("/"))

    @pytest.mark.parametrize("header", ["*", "three", '"3', "-1", "²", "3, 4", "9" * 40])
    def test_anything_else_is_refused(self, header: str) -> None:
        with pytest.raises(errors.Invalid, match="If-Match must be"):
            expected_version(RequestFactory().post("/", headers={"If-Match": header}))


class TestEvents:
    @pytest.fixture
    def reader(self, api: Api) -> APIClient:
        with transaction.atomic():
            for n in range(5):
                append_event(
                    verb="route.set", subject_type="route", subject_id=n % 2, actor=Actor(name="anna"), facts={"n": n}
                )
        return api(make_user("anna"))

    def test_events_come_newest_first_in_pages(self, reader: APIClient) -> None:
        first = reader.get("/api/v1/events?verb=route.set&page_size=3").json()
        second = reader.get(first["next"]).json()
        assert [event["facts"]["n"] for page in (first, second) for event in page["results"]] == [4, 3, 2, 1, 0]
        assert (first["previous"], second["next"]) == (None, None)

    def test_a_page_does_not_move_when_events_are_added(self, reader: APIClient) -> None:
        first = reader.get("/api/v1/events?verb=route.set&page_size=3").json()
        append_event(verb="route.set", subject_type="route", subject_id=1, actor=Actor(name="anna"), facts={"n": 5})
        assert [event["facts"]["n"] for event in reader.get(first["next"]).json()["results"]] == [1, 0]

    def test_events_are_those_of_models_that_one_may_read(self, reader: APIClient, api: Api) -> None:
        make_model("ranker", team=make_team("search"))
        with transaction.atomic():
            for facts, subject in (({"model": "ranker"}, "route"), ({"model": "other"}, "route"), ({}, "model")):
                append_event(
                    verb="route.set", subject_type=subject, subject_id="ranker", actor=Actor(name="bo"), facts=facts
                )

        def seen(user: User) -> list[tuple[str, dict[str, Any]]]:
            found = api(user).get("/api/v1/events?subject_id=ranker").json()["results"]
            return [(event["subject_type"], event["facts"]) for event in found]

        assert seen(make_user("member", team="search", role=Role.CI)) == [("model", {}), ("route", {"model": "ranker"})]
        assert seen(make_user("outsider", team="ads")) == []
        assert (
            seen(make_user("bo")) == seen(make_user("root", is_admin=True))
            and len(seen(make_user("chief", is_admin=True))) == 3
        )

    def test_events_of_one_thing(self, reader: APIClient) -> None:
        found = reader.get("/api/v1/events?subject_type=route&subject_id=1").json()["results"]
        assert [event["facts"]["n"] for event in found] == [3, 1]

    @pytest.mark.parametrize(
        "cursor", ["xyz", "cD1hYmM=", "cj0xJnA9"]
    )  # nonsense, p=abc where numbers are sorted, r=1&p=
    def test_a_broken_cursor_is_a_problem(self, reader: APIClient, cursor: str) -> None:
        for path in ("events", "rollouts", "servers"):
            assert_problem(reader.get(f"/api/v1/{path}?cursor={cursor}"), 404, "not_found")

    def test_half_a_character_is_told_back_as_a_problem(self, api: Api) -> None:
        root = api(make_user("root", is_admin=True))
        for team in ("\ud800", "a\udfffb"):
            answer = root.post(
                "/api/v1/models", json.dumps({"slug": "x", "team": team}), content_type="application/json"
            )
            assert answer.headers["content-type"].startswith("application/problem+json") and answer.status_code in {
                404,
                422,
            }

    def test_a_cursor_with_a_zero_byte_is_a_problem(self, api: Api) -> None:
        member = api(make_user(team="search"))  # who sees some team
        assert_problem(member.get("/api/v1/teams?cursor=cD0lMDA="), 404, "not_found")

    def test_the_audit_is_for_administrators(self, reader: APIClient, api: Api) -> None:
        assert_problem(reader.get("/api/v1/audit"), 403, "forbidden")
        found = api(make_user("root", is_admin=True)).get("/api/v1/audit").json()
        assert (found["is_whole"], found["broken_at"], found["problem"]) == (True, None, "")
        assert found["events"] >= 5 and len(found["head"]) == 64


class TestSchema:
    def test_it_is_served_to_everyone_as_openapi_3_1(self, api: Api) -> None:
        served = api().get("/api/v1/schema")
        assert served.status_code == 200
        assert served.json()["openapi"].startswith("3.1")

    @pytest.mark.slow  # writes the whole schema
    def test_it_is_the_committed_one(self, tmp_path: Path) -> None:
        call_command(
            "spectacular", file=str(tmp_path / "openapi.json"), format="openapi-json", validate=True, fail_on_warn=True
        )
        now = json.loads((tmp_path / "openapi.json").read_text())
        committed = json.loads((ROOT / "docs" / "openapi.json").read_text())
        assert sorted(now["paths"]) == sorted(committed["paths"]), "run `make openapi` and look at the difference"
        assert now == committed, "run `make openapi` and look at the difference"

    def test_every_answer_in_json_has_a_shape(self) -> None:
        others = {"application/vnd.cyclonedx+json; version=1.6", "application/vnd.dev.sigstore.bundle.v0.3+json"}
        bare = [answer for answer in bare_objects() if answer.split(" ", 3)[3] not in others]
        assert bare == []  # but documents of other standards, which their media types name

    def test_a_serializer_renders_what_it_declares(self) -> None:
        """None makes its answer by hand. And the API's place is written once: Prometheus has an API of its own there."""
        text = {str(path.relative_to(ROOT)): path.read_text() for path in sources()}
        assert [path for path, code in text.items() if "def to_representation" in code] == []
        places = [path for path, code in text.items() if API in code]
        assert places == ["accounts/core/addresses.py", "serving/traffic/adapters/prometheus.py"]


class TestSafeStart:
    @pytest.mark.parametrize("key", ["insecure-only-for-tests-and-commands-without-a-server", "short"])
    def test_a_known_or_short_secret_key_is_refused(self, settings: Any, key: str) -> None:
        settings.DEBUG, settings.SECRET_KEY = False, key
        with pytest.raises(ImproperlyConfigured, match="SLUICEGATE_SECRET_KEY_FILE"):
            refuse_unsafe_start()
        settings.SECRET_KEY = "k" * 50
        refuse_unsafe_start()
        settings.DEBUG, settings.SECRET_KEY = True, key
        refuse_unsafe_start()


def test_no_migration_is_missing() -> None:
    try:
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    except SystemExit:
        pytest.fail("a model changed without its migration; run manage.py makemigrations")


def test_a_team_has_a_name_to_show() -> None:
    assert str(make_team("search")) == "search"
