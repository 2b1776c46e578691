"""Webhooks over REST: made, listed, changed, tested, sent again, and refused with a next step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.core.access import Actor, Role
from accounts.models import User
from ledger.actions import append_event
from ledger.models import Event
from notifications.dispatcher import rounds
from notifications.models import Webhook
from tests.support.servers.receiver import Receiver
from tests.support.worlds.factories import make_model, make_team, make_user

pytestmark = pytest.mark.django_db
Api = Callable[..., APIClient]


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOKS_ALLOW_PRIVATE = True
    settings.WEBHOOK_TIMEOUT_S = 0.5
    with Receiver() as running:
        yield running


@pytest.fixture
def root(api: Api) -> APIClient:
    return api(make_user("root", is_admin=True))


@pytest.fixture
def ada() -> User:
    return make_user("ada", team="search", role=Role.MODEL_TEAM)


def create(client: APIClient, target: str = "https://example.com/hook", **over: Any) -> Any:
    return client.post(
        "/api/v1/webhooks", {"team": "search", "target": target, "verbs": ["rollout.*"], **over}, format="json"
    )


def happen(verb: str = "rollout.held") -> Event:
    facts = {"model": "sentiment"}
    return append_event(verb=verb, subject_type="rollout", subject_id=1, actor=Actor.system("engine"), facts=facts)


def test_from_creation_to_deletion(api: Api, root: APIClient, receiver: Receiver) -> None:
    make_model("sentiment", team=make_team("search"))
    made = create(root, receiver.url, title="on call")
    assert made.status_code == 201 and made["ETag"] == '"1"' and made["Cache-Control"] == "no-store"
    body = made.json()
    secret = body.pop("secret")
    assert secret.startswith("whsec_")
    address = f"/api/v1/webhooks/{body['id']}"
    shown = root.get(address)
    assert shown.json() == body and secret not in shown.content.decode()
    assert body | {"team": "search", "kind": "webhook", "target": receiver.url, "verbs": ["rollout.*"], "title": "on call",
                   "is_active": True, "created_by": "root", "version": 1, "waiting": 0, "last_state": ""} == body  # fmt: skip

    tested = root.post(f"{address}/test").json()
    assert (tested["state"], tested["verb"], tested["seq"]) == ("delivered", "webhook.test", None)
    assert tested["attempts"][0]["status_code"] == 204
    assert receiver.got[0].is_signed_with(secret) and receiver.got[0].id == tested["id"]

    event = happen()
    receiver.always = 500
    rounds.run_round(lambda: True)
    assert root.get(address).json()["waiting"] == 1
    log = root.get(f"{address}/deliveries").json()["results"]
    assert [(row["verb"], row["state"]) for row in log] == [("rollout.held", "failed"), ("webhook.test", "delivered")]
    assert "500" in log[0]["attempts"][0]["error"]
    assert [row["id"] for row in root.get(f"{address}/deliveries?state=delivered").json()["results"]] == [tested["id"]]
    assert root.get(f"{address}/deliveries/{log[0]['id']}").json() == log[0]

    receiver.always = 200
    since = (event.at - timedelta(seconds=1)).isoformat()
    assert root.post(f"{address}/replay", {"since": since}, format="json").json() == {
        "deliveries": 0
    }  # on its way still
    changed = root.patch(address, {"verbs": ["*"]}, format="json", HTTP_IF_MATCH='"1"')
    assert changed.json()["verbs"] == ["*"] and changed["ETag"] == '"2"'
    rotated = root.post(f"{address}/rotate", {"overlap_s": 0}, format="json", HTTP_IF_MATCH='"2"').json()
    assert rotated["secret"].startswith("whsec_") and rotated["secret"] != secret and rotated["version"] == 3
    assert root.delete(address, HTTP_IF_MATCH="3").status_code == 204
    assert root.get(address).json()["code"] == "no_such_webhook"
    assert not Webhook.objects.exists()


def test_one_delivery_is_sent_again(root: APIClient, receiver: Receiver) -> None:
    make_model("sentiment", team=make_team("search"))
    address = f"/api/v1/webhooks/{create(root, receiver.url).json()['id']}"
    happen()
    rounds.run_round(lambda: True)
    (row,) = root.get(f"{address}/deliveries").json()["results"]
    again = f"{address}/deliveries/{row['id']}/replay"
    assert (root.post(again).status_code, root.post(again).json()) == (202, {"deliveries": 0})
    rounds.run_round(lambda: True)
    assert [got.id for got in receiver.got] == [row["id"]] * 2


def test_a_team_manages_its_own_and_sees_no_others(api: Api, root: APIClient, ada: User) -> None:
    make_team("ads")
    ours = create(api(ada)).json()
    assert ours["team"] == "search" and ours["created_by"] == "ada"
    create(root, "https://example.com/ads", team="ads")
    create(root, "https://example.com/all", team=None)
    assert [row["id"] for row in api(ada).get("/api/v1/webhooks").json()["results"]] == [ours["id"]]
    assert len(root.get("/api/v1/webhooks").json()["results"]) == 3
    robot, other = make_user(team="search", role=Role.CI), make_user(team="ads", role=Role.MODEL_TEAM)
    for client in (api(robot), api(other)):
        for answer in (
            client.get(f"/api/v1/webhooks/{ours['id']}"),
            client.get(f"/api/v1/webhooks/{ours['id']}/deliveries"),
            client.post(f"/api/v1/webhooks/{ours['id']}/test"),
            client.delete(f"/api/v1/webhooks/{ours['id']}", HTTP_IF_MATCH="1"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "no_such_webhook")
        assert create(client).json()["code"] == "forbidden"
    assert api().get("/api/v1/webhooks").status_code == 401


@pytest.mark.parametrize(
    ("over", "field", "says"),
    [
        ({"target": "http://127.0.0.1:9/"}, "target", "administrator"),
        ({"target": "http://169.254.169.254/"}, "target", "receiver's own address"),
        ({"target": "gopher://x"}, "target", "https://host/path"),
        ({"verbs": ["rollout.exploded"]}, "verbs", "rollout.stuck"),
        ({"verbs": []}, "verbs", "rollout.*"),
        ({"verbs": "rollout.*"}, "verbs", "schema"),
        ({"kind": "email", "target": "on-call@example.com"}, "target", "SLUICEGATE_EMAIL_URL"),
        ({"kind": "pigeon"}, "kind", "schema"),
        ({"team": None}, "team", "Name your team"),
        ({"url": "https://example.com"}, "url", "Remove it"),
    ],
)
def test_what_is_wrong_and_what_to_do(api: Api, ada: User, over: dict[str, Any], field: str, says: str) -> None:
    answer = create(api(ada), **over)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == field and says in error["fix"]


def test_changes_take_the_version(api: Api, ada: User) -> None:
    client = api(ada)
    address = f"/api/v1/webhooks/{create(client).json()['id']}"
    for method, path in (("patch", address), ("delete", address), ("post", f"{address}/rotate")):
        missing = getattr(client, method)(path, {}, format="json")
        assert (missing.status_code, missing.json()["code"]) == (428, "if_match_missing")
        stale = getattr(client, method)(path, {}, format="json", HTTP_IF_MATCH='"7"')
        assert (stale.status_code, stale.json()["version"]) == (412, 1)
    assert create(client).json()["code"] == "webhook_exists"


def test_what_is_no_time_and_no_delivery(api: Api, ada: User) -> None:
    client = api(ada)
    address = f"/api/v1/webhooks/{create(client).json()['id']}"
    assert (
        client.post(f"{address}/replay", {"since": "yesterday"}, format="json").json()["errors"][0]["field"] == "since"
    )
    nobody = client.get(f"{address}/deliveries/00000000-0000-0000-0000-000000000000")
    assert (nobody.status_code, nobody.json()["code"]) == (404, "no_such_delivery")
    assert client.get(f"{address}/deliveries?state=odd").json()["results"] == []
    assert client.get("/api/v1/webhooks/99999999999999999999/deliveries").status_code == 404
