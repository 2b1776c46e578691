"""A release's replicas over the API, on the command line and on its page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.actions import actor_for, issue_token
from accounts.core.access import Role
from registry.models import Release
from serving.models import Replica, ReplicaTarget, Route
from serving.traffic.core.admission import Proof
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.pages.test_model_tabs import HOSTILE, signed_in
from tests.support.worlds.factories import make_model, make_release, make_replica, make_server, make_user
from tests.support.worlds.rollout_setup import production, serves

pytestmark = pytest.mark.django_db
URL = "/api/v1/models/sentiment/releases/r1/replicas"


@pytest.fixture
def release() -> Release:
    found = make_release(make_model("sentiment"))
    serves(found)
    make_server(make_replica(found, production(), state="ready"))
    return found


@pytest.fixture
def dev() -> Client:
    user = make_user("dev", is_admin=True)
    token = issue_token(user=user, name="test", actor=actor_for(user))
    return Client(headers={"Authorization": f"Bearer {token}"})


def said(dev: Client, replicas: Any, version: str = "*", **over: Any) -> Any:
    body = {"environment": "production", "replicas": replicas, **over}
    return dev.post(URL, body, "application/json", headers={"If-Match": version})


def test_what_there_is_and_what_is_wanted(dev: Client, release: Release) -> None:
    (told,) = dev.get(URL).json()["results"]
    (one,) = told.pop("replicas")
    assert told == {
        "environment": "production", "wanted": 1, "declared_min": None, "declared_max": None, "version": 0,
        "reason": "", "changed_by": "", "answering": 1, "admission": {"in_flight": 8, "basis": "default", "report": ""},
    }  # fmt: skip
    assert (one["node"], one["ordinal"], one["answers"], one["is_silent"]) == ("local", 0, True, False)
    answer = said(dev, 3, '"0"', reason="more users")
    assert answer.status_code == 200 and answer.headers["ETag"] == '"1"'
    assert (answer.json()["wanted"], answer.json()["changed_by"], answer.json()["reason"]) == (3, "dev", "more users")


@pytest.mark.parametrize("replicas", [0, -1, 101, "many", None, 2.5])
def test_what_is_no_number_of_replicas_is_refused(dev: Client, release: Release, replicas: Any) -> None:
    assert said(dev, replicas).status_code == 422 and not ReplicaTarget.objects.exists()


def test_what_cannot_be_scaled_is_told_with_the_next_step(dev: Client, release: Release) -> None:
    assert said(dev, 2, environment="nowhere").status_code == 404
    assert said(dev, 2, '"7"').json()["code"] == "stale"
    make_release(release.model)
    answer = dev.post(URL.replace("r1", "r2"), {"environment": "production", "replicas": 2}, "application/json")
    assert answer.status_code == 428  # which version, or any
    headers = {"If-Match": "*"}
    body = {"environment": "production", "replicas": 2}
    answer = dev.post(URL.replace("r1", "r2"), body, "application/json", headers=headers)
    assert (
        answer.json()["code"] == "not_deployed" and "sluicegate rollout start sentiment/r2" in answer.json()["detail"]
    )


def test_how_many_may_be_in_flight_on_each_is_told_with_what_it_rests_on(dev: Client, release: Release) -> None:
    proof = Proof(40.0, 0.25, "sha256:" + "ab" * 32)
    route, _ = Route.objects.update_or_create(
        environment=production(), model=release.model, defaults={"stable": release, "changed_at": timezone.now()}
    )
    Route.objects.filter(pk=route.pk).update(proven={str(release.pk): proof.as_json()})
    (told,) = dev.get(URL).json()["results"]
    assert told["admission"] == {"in_flight": 11, "basis": "proven", "report": proof.report}
    client = signed_in(make_user("vi", team=release.model.team.slug, role=Role.VIEWER))
    page = client.get(reverse("release_replicas", args=["sentiment", 1])).content.decode()
    assert "<strong>11</strong>" in page and "at the proven 40.0/s" in page


def test_the_page_says_how_many_and_takes_another_number(release: Release) -> None:
    member = signed_in(make_user("ana", team=release.model.team.slug))
    page = reverse("release_replicas", args=["sentiment", 1])
    form = reverse("release_scale", args=["sentiment", 1])
    assert "<strong>1 of 1</strong> answer" in member.get(page).content.decode()
    body = {"environment": "production", "replicas": "3", "reason": HOSTILE, "version": "0"}
    assert member.post(form, body).headers["Location"] == page
    shown = member.get(page).content.decode()
    assert "<strong>1 of 3</strong> answer" in shown and HOSTILE not in shown
    for wrong in ({"replicas": "many"}, {"replicas": "0"}, {"version": "0"}, {"environment": "nowhere"}):
        answer = member.post(form, {**body, "version": "1", **wrong})
        assert answer.status_code >= 400 and "Replicas in production" in answer.content.decode()
    assert ReplicaTarget.objects.get().replicas == 3


def test_a_replica_is_replaced_over_the_api_and_asked_again_nothing_happens(dev: Client, release: Release) -> None:
    old = Replica.objects.get()
    for _ in range(2):
        answer = dev.post(f"{URL}/replace", {"replica": old.pk, "reason": "its disk"}, "application/json")
        told = answer.json()["replicas"]
        assert answer.status_code == 200 and [(one["ordinal"], one["is_leaving"]) for one in told] == [
            (0, True),
            (0, False),
        ]
    answer = dev.post(f"{URL}/replace", {"replica": old.pk + 99}, "application/json")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_deployment")
    answer = dev.post(f"{URL}/replace", {"replica": old.pk, "set_aside": True}, "application/json")
    assert (answer.status_code, answer.json()["code"]) == (409, "last_replica")


def test_the_page_replaces_one(release: Release) -> None:
    member = signed_in(make_user("ana", team=release.model.team.slug))
    page, form = (reverse(name, args=["sentiment", 1]) for name in ("release_replicas", "release_replace"))
    old = Replica.objects.get()
    assert form in member.get(page).content.decode()
    for wrong in ("", "x", str(old.pk + 99), "9" * 30):
        answer = member.post(form, {"replica": wrong})
        assert answer.status_code == 404 and "Replicas in production" in answer.content.decode()
    answer = member.post(form, {"replica": str(old.pk), "set_aside": "on"})
    assert answer.status_code == 409 and "keeps its traffic" in answer.content.decode()
    assert member.post(form, {"replica": str(old.pk), "reason": HOSTILE}).headers["Location"] == page
    assert Replica.objects.count() == 2 and HOSTILE not in member.get(page).content.decode()


def test_a_viewer_sees_the_replicas_and_no_form(release: Release) -> None:
    viewer = signed_in(make_user("vi", team=release.model.team.slug, role=Role.VIEWER))
    assert "Replicas in production" in (
        shown := viewer.get(reverse("release_replicas", args=["sentiment", 1])).content.decode()
    )
    assert reverse("release_scale", args=["sentiment", 1]) not in shown
    form = reverse("release_replace", args=["sentiment", 1])
    assert form not in shown and viewer.post(form, {"replica": str(Replica.objects.get().pk)}).status_code == 403
