"""Gateways on the page of their environment, by API and by command: registered, drained, given users again, removed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from serving.models import Environment, Gateway
from tests.support.worlds.factories import make_environment, make_user

pytestmark = pytest.mark.django_db
GIVEN = {"name": "eu-2", "http_url": "http://127.0.0.1:8000", "grpc_address": "127.0.0.1:8000"}


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(make_user("root", is_admin=True))
    return client


@pytest.fixture
def production() -> Environment:
    return make_environment("production")


@pytest.fixture
def gateway(production: Environment) -> Gateway:
    return Gateway.objects.create(
        environment=production, name="eu-1", http_url="http://127.0.0.1:1", grpc_address="127.0.0.1:1",
        seen_at=timezone.now() + timedelta(hours=1),
    )  # fmt: skip


def page(client: Client, environment: Environment) -> str:
    return client.get(reverse("settings_environment", args=[environment.slug])).content.decode()


def test_the_form_registers_a_gateway_and_shows_what_its_envoy_is_started_with(
    root: Client, production: Environment
) -> None:
    assert "Register a gateway below" in page(root, production)
    answer = root.post(reverse("gateway_register", args=["production"]), GIVEN | {"relay": "unix:/run/relay.sock"})
    said = answer.content.decode()
    assert answer.status_code == 200 and "eu-2 is registered" in said and "/run/relay.sock" in said
    assert Gateway.objects.get().admin_url == "unix:/run/sluicegate/eu-2-admin.sock"
    assert "never seen" in page(root, production)


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"name": "EU 2"}, "no name of a gateway"), ({"http_url": "127.0.0.1"}, "http_url must be"),
     ({"control_planes": "10.0.0.1:18000"}, "wants to know who calls")],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_the_form_keeps_what_was_typed(
    root: Client, production: Environment, changed: dict[str, str], why: str
) -> None:
    answer = root.post(reverse("gateway_register", args=["production"]), GIVEN | {"counters": "a:1"} | changed)
    said = answer.content.decode()
    assert answer.status_code == 422 and why in said and 'value="a:1"' in said and not Gateway.objects.exists()


def test_an_environment_without_gateways_gets_none(root: Client) -> None:
    make_environment("staging", is_routed=False)
    answer = root.post(reverse("gateway_register", args=["staging"]), GIVEN)
    assert answer.status_code == 422 and "has no gateways" in answer.content.decode()


def test_drained_resumed_and_removed_from_the_page(root: Client, production: Environment, gateway: Gateway) -> None:
    drain, resume, remove = (reverse("gateway_act", args=["eu-1", verb]) for verb in ("drain", "resume", "remove"))
    assert drain in page(root, production) and remove not in page(root, production)
    assert root.post(drain, {"version": "1", "reason": "kernel update"}).status_code == 302
    said = page(root, production)
    assert "drained by root" in said and "kernel update" in said and resume in said and drain not in said
    assert root.post(resume, {"version": "1"}).status_code in (409, 412)  # of a page that is older than the drain
    assert root.post(resume, {"version": "2"}).status_code == 302
    assert root.post(remove, {"version": "3"}).status_code == 409
    Gateway.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    assert "silent" in page(root, production) and remove in page(root, production)
    assert root.post(remove, {"version": "3"}).status_code == 302
    assert not Gateway.objects.exists()
    assert root.post(drain, {"version": "1"}).status_code == 404


def test_others_see_gateways_and_change_nothing(production: Environment, gateway: Gateway) -> None:
    ann = Client()
    ann.force_login(make_user("ann", team="search"))
    assert "eu-1" in page(ann, production) and "Drain eu-1" not in page(ann, production)
    assert ann.post(reverse("gateway_act", args=["eu-1", "drain"]), {"version": "1"}).status_code == 403
    assert ann.post(reverse("gateway_register", args=["production"]), GIVEN).status_code == 403
    assert Gateway.objects.get().drained_at is None


def test_the_api_lists_adds_drains_and_removes(root: Client, production: Environment, gateway: Gateway) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        return root.post(
            f"/api/v1/gateways{path}", json.dumps(body), content_type="application/json", headers={"If-Match": "*"}
        )

    (row,) = root.get("/api/v1/gateways").json()["results"]
    assert (row["name"], row["state"], row["routes"], row["acknowledged"], row["refused"]) == ("eu-1", "ready", 0, 0, 0)
    added = post("", {**GIVEN, "environment": "production"})
    assert added.status_code == 201 and added.json()["envoy"]["node"]["id"] == "eu-2"
    at = {"admin": "unix:/run/other.sock"}
    post("", {**GIVEN, "environment": "production", **at})
    moved = post("", {**GIVEN, "environment": "production", "http_url": "http://127.0.0.1:9000"}).json()
    assert Gateway.objects.get(name="eu-2").admin_url == at["admin"] and moved["http_url"] == "http://127.0.0.1:9000"
    assert moved["envoy"]["admin"]["address"]["pipe"]["path"] == "/run/other.sock"
    for url in ("https://10.0.0.9:9902", "http://10.0.0.9:9902"):  # its certificate is not said
        Gateway.objects.filter(name="eu-2").update(admin_url=url)
        refused = post("", {**GIVEN, "environment": "production"})
        assert refused.status_code == 422 and refused.json()["code"] == "gateway_setup"
    assert Gateway.objects.get(name="eu-2").http_url == "http://127.0.0.1:9000"
    refused = post("", {**GIVEN, "environment": "production", "key": "/k"})
    assert refused.status_code == 422 and refused.json()["code"] == "gateway_setup"
    assert post("/eu-1/drain", {}).json()["code"] == "not_confirmed"
    assert post("/eu-1/drain", {"is_confirmed": True}).json()["state"] == "drained"
    assert post("/eu-1/resume", {}).json()["state"] == "ready"
    assert post("/eu-1/remove", {}).json()["code"] == "gateway_in_use"
    assert post("/eu-2/remove", {}).status_code == 204
    assert post("/eu-2/remove", {}).status_code == 404
