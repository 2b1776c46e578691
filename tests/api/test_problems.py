"""Whatever the API refuses is a problem (RFC 9457) with a stable code and a sentence, and tells nothing of the inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.core.exceptions import PermissionDenied
from django.db import InternalError, OperationalError, connection
from django.http import Http404
from psycopg.errors import DeadlockDetected, IdleInTransactionSessionTimeout, ReadOnlySqlTransaction
from rest_framework import exceptions
from rest_framework.test import APIClient

from accounts import actions
from accounts.models import Team
from ledger.actions import events
from ledger.core import errors
from sluicegate.api import FIXES, OTHER_FIX, problem_handler
from tests.api.problems import assert_problem
from tests.support.worlds.factories import make_user

pytestmark = pytest.mark.django_db
Api = Callable[..., APIClient]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("get", "/api/v1/nowhere", 404, "not_found"),
        ("get", "/api/", 404, "not_found"),
        ("delete", "/api/v1/me", 405, "method_not_allowed"),
    ],
)
def test_addresses_and_methods_that_are_not_there(api: Api, method: str, path: str, status: int, code: str) -> None:
    body = assert_problem(getattr(api(make_user()), method)(path), status, code)
    assert body["instance"] == path


def test_a_body_that_is_no_json(api: Api) -> None:
    response = api().post("/api/v1/tokens", "{", content_type="application/json")
    assert_problem(response, 400, "parse_error")


def test_a_body_of_another_kind(api: Api) -> None:
    assert_problem(api().post("/api/v1/tokens", "<a/>", content_type="text/xml"), 415, "unsupported_media_type")


def test_a_body_that_is_no_object(api: Api) -> None:
    root = api(make_user("root", is_admin=True))
    for path in ("/api/v1/tokens", "/api/v1/teams", "/api/v1/users", "/api/v1/users/root/tokens"):
        assert_problem(root.post(path, [1], format="json"), 422, "not_an_object")


def test_missing_fields_are_named(api: Api) -> None:
    body = assert_problem(api().post("/api/v1/tokens", {}, format="json"), 422, "invalid")
    assert {error["field"] for error in body["errors"]} == {"username", "password"}
    assert all(error["message"] for error in body["errors"])


@pytest.mark.parametrize("cls", errors.DomainError.__subclasses__())
def test_every_error_of_ours(cls: type[errors.DomainError]) -> None:
    response = problem_handler(cls("some_code", "The valve is shut; open it.", valve=3), {})
    assert response.status_code == cls.status
    assert response.data | {"title": ""} == {
        "type": "/errors/some_code/", "title": "", "status": cls.status, "code": "some_code",
        "detail": "The valve is shut; open it.", "valve": 3,
    }  # fmt: skip


def test_facts_cannot_hide_what_every_problem_has() -> None:
    response = problem_handler(errors.Invalid("some_code", "Wrong.", title="mine", type="mine", instance="mine"), {})
    assert (response.data["title"], response.data["type"]) == ("Invalid", "/errors/some_code/")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Http404(), 404, "not_found"),
        (PermissionDenied(), 403, "forbidden"),
        (exceptions.Throttled(wait=7), 429, "throttled"),
        (exceptions.NotAcceptable(), 406, "not_acceptable"),
    ],
)
def test_errors_of_django_and_rest_framework(error: Exception, status: int, code: str) -> None:
    response = problem_handler(error, {})
    assert (response.status_code, response.data["code"]) == (status, code)
    assert response.headers.get("Retry-After") == ("7" if status == 429 else None)


def test_nested_validation_errors_say_where() -> None:
    error = exceptions.ValidationError({"roles": [{}, {"role": ["no such role"]}], "name": ["too long"]})
    response = problem_handler(error, {})
    assert response.data["errors"] == [
        {"field": "roles[1].role", "message": "no such role", "fix": OTHER_FIX},
        {"field": "name", "message": "too long", "fix": OTHER_FIX},
    ]


def test_a_list_that_is_none_is_named_as_its_field(api: Api) -> None:
    root = api(make_user("root", is_admin=True))
    body = assert_problem(root.post("/api/v1/users", {"username": "u", "roles": "ci"}, format="json"), 422, "invalid")
    assert [found["field"] for found in body["errors"]] == ["roles"]


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.parametrize("path", ["/api/v1/nowhere", "/api/v1/releases/x/files/", "/api/v1/models/a/b%0Ac"])
def test_an_unknown_address_is_a_problem_for_every_method(method: str, path: str) -> None:
    client = APIClient(enforce_csrf_checks=True)
    assert_problem(getattr(client, method)(path, {}, format="json"), 404, "not_found")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "Send one JSON object"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "flatter"),
        ('{"slug": "search", "slug": "ads"}', "'slug' occurs twice"),
        ('{"slug": NaN}', "NaN is no JSON number"),
        (b'{"slug": "\xff"}', "UTF-8"),
    ],
)
def test_a_body_that_others_may_read_otherwise(api: Api, body: str | bytes, says: str) -> None:
    root = api(make_user("root", is_admin=True))
    answer = root.post("/api/v1/teams", body, content_type="application/json")
    assert says in assert_problem(answer, 400, "parse_error")["detail"]


def test_half_a_character_is_the_callers_mistake() -> None:
    with pytest.raises(UnicodeEncodeError) as raised:
        "\ud800".encode()
    assert problem_handler(raised.value, {}).data["code"] == "invalid"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/teams", {"slug": "search", "titel": "Search"}, "titel"),
        ("/api/v1/users", {"username": "ci", "is_admn": True}, "is_admn"),
        ("/api/v1/users", {"username": "ci", "roles": [{"team": "a", "role": "ci", "x": 1}]}, "roles[0].x"),
        ("/api/v1/users/root/tokens", {"nme": "ci"}, "nme"),
        ("/api/v1/teams/search/members", {"username": "root", "role": "ci", "x": 1}, "x"),
        ("/api/v1/tokens", {"username": "root", "password": "x", "x": 1}, "x"),
    ],
)
def test_a_field_that_is_not_there_is_named(api: Api, path: str, body: dict[str, Any], field: str) -> None:
    root = api(make_user("root", is_admin=True))
    found = assert_problem(root.post(path, body, format="json"), 422, "invalid")["errors"]
    assert [(error["field"], error["fix"]) for error in found] == [(field, FIXES["unknown_field"])]


def test_nobody_is_told_how_to_sign_in(api: Api) -> None:
    assert "sluicegate login" in assert_problem(api().get("/api/v1/me"), 401, "not_authenticated")["detail"]


def test_the_unexpected_gets_an_id_and_no_traceback(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:

    def broken(**_: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(actions, "create_team", broken)
    response = api(make_user("root", is_admin=True)).post("/api/v1/teams", {"slug": "x"}, format="json")
    body = assert_problem(response, 500, "internal")
    assert body["error_id"] in body["detail"]
    assert "secret" not in str(body) and "Zero" not in str(body)


@pytest.mark.django_db(transaction=True)
def test_what_another_change_holds_is_told_apart_from_a_database_that_is_away(api: Api) -> None:
    root = api(make_user("root", is_admin=True))
    here = connection.settings_dict
    other = psycopg.connect(
        dbname=here["NAME"], user=here["USER"], password=here["PASSWORD"], host=here["HOST"], port=here["PORT"]
    )
    with other, connection.cursor() as cursor:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [events._CHAIN_LOCK])
        cursor.execute("SET lock_timeout = '50ms'")
        response = root.post("/api/v1/teams", {"slug": "search"}, format="json")
        cursor.execute("RESET lock_timeout")
    assert "Nothing was changed" in assert_problem(response, 503, "locked")["detail"]
    assert response["Retry-After"] == "2" and not Team.objects.exists()


@pytest.mark.parametrize(
    ("raised", "cause", "code"),
    [
        (InternalError, IdleInTransactionSessionTimeout, "database_unavailable"),
        (InternalError, ReadOnlySqlTransaction, "database_unavailable"),
        (OperationalError, DeadlockDetected, "locked"),
    ],
)
def test_what_the_database_ends_may_be_tried_again(raised: type[Exception], cause: type[Exception], code: str) -> None:
    error = raised("ended")
    error.__cause__ = cause("ended")
    answer = problem_handler(error, {})
    assert (answer.status_code, answer.data["code"], answer["Retry-After"]) == (503, code, "2")


def test_other_trouble_inside_the_database_is_ours() -> None:
    assert problem_handler(InternalError("something else"), {}).status_code == 500
