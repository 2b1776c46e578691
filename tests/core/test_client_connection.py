"""The API's client: where its token goes, and what it takes for an answer."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from sluicegate.client.connection import Connection
from sluicegate.client.errors import ClientError, Problem

URL = "https://sluicegate.example.com"
Answer = Callable[[httpx.Request], httpx.Response]


def connection(answer: Answer, asked: list[str] | None = None) -> Connection:
    def seen(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append(str(request.url))
        return answer(request)

    return Connection(URL, "secret", transport=httpx.MockTransport(seen))


def test_a_next_page_on_another_host_is_asked_of_this_server() -> None:
    pages = iter([
        {"results": [{"id": 1}], "next": "https://elsewhere.example.com/api/v1/models?cursor=a"},
        {"results": [{"id": 2}], "next": None},
    ])  # fmt: skip
    asked: list[str] = []
    client = connection(lambda _: httpx.Response(200, json=next(pages)), asked)
    assert [one["id"] for one in client.pages("/models")] == [1, 2]
    assert asked == [f"{URL}/api/v1/models", f"{URL}/api/v1/models?cursor=a"]


@pytest.mark.parametrize("is_list", [True, False])
def test_a_query_in_the_path_stays_beside_fields(is_list: bool) -> None:
    asked: list[str] = []
    client = connection(lambda _: httpx.Response(200, json={"results": [], "next": None}), asked)
    if is_list:
        assert list(client.pages("/rollouts?state=shifting", query={"path": "x"})) == []
        assert asked == [f"{URL}/api/v1/rollouts?state=shifting&path=x"]
    else:
        client.call("GET", "/rollouts?state=shifting", query={"environment": "production"})
        assert asked == [f"{URL}/api/v1/rollouts?state=shifting&environment=production"]


def test_what_is_no_list_has_no_pages() -> None:
    with pytest.raises(ClientError, match="is no list"):
        list(connection(lambda _: httpx.Response(200, json={"slug": "sentiment"})).pages("/models/sentiment"))


def test_a_redirect_is_no_answer() -> None:
    client = connection(lambda _: httpx.Response(302, headers={"Location": "https://sso.example.com/"}))
    with pytest.raises(ClientError, match=r"sends this request on to https://sso\.example\.com/"):
        client.call("GET", "/models")


def test_a_sign_in_page_does_nothing() -> None:
    page = httpx.Response(200, text="<html>Sign in</html>", headers={"Content-Type": "text/html; charset=utf-8"})
    with pytest.raises(ClientError, match="nothing is known to be done"):
        connection(lambda _: page).call("POST", "/models/sentiment/rollback", body={"reason": "P99"})


def test_no_path_leads_out_of_the_api() -> None:
    asked: list[str] = []
    with pytest.raises(ClientError, match="no path of the API"):
        connection(lambda _: httpx.Response(200, json={}), asked).call("GET", "/models/../../../x")
    assert asked == []


def test_a_problem_may_have_members_of_any_name() -> None:
    body = {"detail": "Refused.", "message": "of a proxy", "self": "x", "extra": 1}
    with pytest.raises(Problem, match=r"Refused\.") as raised:
        connection(lambda _: httpx.Response(403, json=body)).get("/models")
    assert raised.value.facts["extra"] == 1
