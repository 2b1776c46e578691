"""Rollouts over REST: what CI and an on-call engineer do with curl."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.actions import actor_for
from accounts.core.access import Role
from rollouts.models import Observation, Rollout
from tests.factories import make_environment, make_model, make_release, make_team, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> APIClient:
    return signed_in(make_user(team="search", role=Role.RELEASE_MANAGER))


def signed_in(user: Any) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def body() -> dict[str, Any]:
    release = make_release(make_model(team=make_team("search"), objectives={"errors_max_frac": 0.01}))
    make_environment("production", needs_passed_report=False)
    return {"model": release.model.slug, "candidate": release.name, "environment": "production"}


def test_start_then_look(client: APIClient, body: dict[str, Any]) -> None:
    answer = client.post("/api/v1/rollouts", body, format="json")
    assert answer.status_code == 201, answer.data
    url = answer.data["links"]["self"]
    view = client.get(url)
    assert view.status_code == 200 and view["ETag"] == f'"{view.data["version"]}"'
    data = view.data
    assert data["state"] == "preparing" and data["candidate"]["name"] == "r1" and data["stable"] is None
    assert [step["name"] for step in data["steps"]] == ["step 1", "bake"] and data["steps"][0]["weight_pct"] == 100
    guard = data["guards"][0]
    assert guard["name"] == "errors" and guard["bar_worse"] > guard["log_e_worse"] and guard["samples_to_go"] is None
    assert data["weight"] == {
        "commanded_bp": 0, "is_acknowledged": None, "acknowledged_bp": None, "acknowledged_at": None, "error": "", "observed_bp": None,
    }  # fmt: skip
    assert data["clock"]["decision_to_zero_s"] is None and data["decisions"][0]["action"] == "request"
    rows = client.get("/api/v1/rollouts", {"model": body["model"]}).data["results"]
    assert [row["id"] for row in rows] == [data["id"]]


def test_a_misspelt_field_starts_nothing(client: APIClient, body: dict[str, Any]) -> None:
    answer = client.post("/api/v1/rollouts", {**body, "polcy": {"preset": "careful"}}, format="json")
    assert answer.status_code == 422
    assert [error["field"] for error in answer.data["errors"]] == ["polcy"]
    assert client.get("/api/v1/rollouts").data["results"] == []


def test_a_policy_may_be_sent_along_and_its_mistakes_come_back(client: APIClient, body: dict[str, Any]) -> None:
    wrong = client.post("/api/v1/rollouts", {**body, "policy": {"preset": "fats", "holdback_pct": 80}}, format="json")
    assert wrong.status_code == 422 and wrong.data["code"] == "rollout_policy_invalid"
    assert {error["field"] for error in wrong.data["errors"]} == {"preset", "holdback_pct"}
    assert client.post("/api/v1/rollouts", {**body, "policy": [1]}, format="json").status_code == 422
    assert client.post("/api/v1/rollouts", {"model": body["model"]}, format="json").status_code == 422
    assert not Rollout.objects.exists()
    right = client.post("/api/v1/rollouts", {**body, "policy": {"preset": "fast"}}, format="json")
    assert right.status_code == 201 and right.data["policy"]["preset"] == "fast"


def test_a_second_start_names_the_first(client: APIClient, body: dict[str, Any]) -> None:
    first = client.post("/api/v1/rollouts", body, format="json").data["id"]
    second = client.post("/api/v1/rollouts", body, format="json")
    assert second.status_code == 409 and second.data["code"] == "rollout_active" and second.data["rollout"] == first


def test_a_verb_needs_the_version_that_was_seen(client: APIClient, body: dict[str, Any]) -> None:
    view = client.post("/api/v1/rollouts", body, format="json").data
    url = f"{view['links']['self']}/cancel"
    assert client.post(url, {"reason": "No."}, format="json").status_code == 428
    stale = client.post(url, {"reason": "No."}, format="json", headers={"If-Match": str(view["version"] - 1)})
    assert stale.status_code == 412 and stale.data["version"] == view["version"]
    wrong = client.post(
        f"{view['links']['self']}/resume", {"reason": "Go."}, format="json", headers={"If-Match": str(view["version"])}
    )
    assert wrong.status_code == 409 and wrong.data["code"] == "wrong_state"
    done = client.post(url, {"reason": "No."}, format="json", headers={"If-Match": f'"{view["version"]}"'})
    assert done.status_code == 200 and done.data["state"] == "cancelled" and done.data["is_final"]


def test_strangers_see_and_do_nothing(body: dict[str, Any], client: APIClient) -> None:
    view = client.post("/api/v1/rollouts", body, format="json").data
    stranger = signed_in(make_user(team="elsewhere"))
    assert stranger.get("/api/v1/rollouts").data["results"] == []
    assert stranger.get(view["links"]["self"]).status_code == 404
    assert stranger.post("/api/v1/rollouts", body, format="json").status_code == 404
    verb = stranger.post(f"{view['links']['self']}/abort", {"reason": "x"}, format="json", headers={"If-Match": "1"})
    assert verb.status_code == 404
    assert APIClient().get("/api/v1/rollouts").status_code == 401


def test_nothing_to_roll_back_is_said(client: APIClient, body: dict[str, Any]) -> None:
    answer = client.post(
        f"/api/v1/models/{body['model']}/rollback", {"environment": "production", "reason": "Now."}, format="json"
    )
    assert answer.status_code == 404 and answer.data["code"] == "no_active_rollout"
    rollout = client.post("/api/v1/rollouts", body, format="json").data
    answer = client.post(
        f"/api/v1/models/{body['model']}/rollback", {"environment": "production", "reason": "Now."}, format="json"
    )
    assert answer.status_code == 200 and (answer.data["id"], answer.data["state"]) == (rollout["id"], "cancelled")


def test_observations_and_decisions_are_pages(client: APIClient, body: dict[str, Any]) -> None:
    view = client.post("/api/v1/rollouts", body, format="json").data
    rollout = Rollout.objects.get(pk=view["id"])
    for tick in range(3):
        Observation.objects.create(
            rollout=rollout,
            first_tick=tick,
            tick=tick,
            from_at=rollout.created_at,
            at=rollout.created_at,
            state="shifting",
            weight_bp=500,
            candidate={"attempts": tick},
            stable={},
            evidence={},
        )
    seen = client.get(view["links"]["observations"]).data["results"]
    assert [row["tick"] for row in seen] == [2, 1, 0]
    assert client.get(view["links"]["decisions"]).data["results"][0]["action"] == "request"
    assert client.get("/api/v1/rollouts/999999/decisions").status_code == 404


def test_actor_of_the_request_is_recorded(client: APIClient, body: dict[str, Any]) -> None:
    user = make_user("ci-robot", team="search", role=Role.CI)
    view = signed_in(user).post("/api/v1/rollouts", body, format="json").data
    assert view["requested_by"] == "ci-robot" and view["decisions"][-1]["actor"] == actor_for(user).name
