"""Notes, comments and what was rolled back, over the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.core.access import Role
from registry.models import Release
from tests.support.worlds.factories import make_model, make_release, make_team, make_user
from tests.support.worlds.rollout_setup import put, serves, started

pytestmark = pytest.mark.django_db
HERE = "/api/v1/models/sentiment/releases"


@pytest.fixture
def release() -> Release:
    return make_release(make_model("sentiment", team=make_team("search")))


@pytest.fixture
def ana(client: Client) -> Client:
    client.force_login(make_user("ana", team="search", role=Role.MODEL_TEAM))
    return client


def post(client: Client, path: str, body: Any, **headers: str) -> Any:
    return client.post(f"{HERE}{path}", body, content_type="application/json", headers=headers)


def test_a_note_is_written_from_the_version_that_was_seen(ana: Client, release: Release) -> None:
    written = post(ana, "/r1/notes", {"text": "<b>bold</b>", "tags": ["precision=int8"]}, **{"If-Match": '"0"'})
    assert (written.status_code, written["ETag"], written.json()["version"]) == (200, '"1"', 1)
    assert post(ana, "/r1/notes", {"text": "x"}, **{"If-Match": '"0"'}).status_code == 412
    refused = post(ana, "/r1/notes", {"text": "x", "tags": ["Ü"]})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_note")
    (note,) = ana.get(f"{HERE}/r1/notes").json()["results"]
    assert (note["text"], note["tags"], note["written_by"]) == ("<b>bold</b>", ["precision=int8"], "ana")


def test_comments_are_written_listed_and_resolved(ana: Client, release: Release) -> None:
    make_release(release.model)
    written = post(ana, "/r2/comments", {"text": "Why?", "section": "metrics", "against": "r1"})
    assert written.status_code == 201 and written.json()["against"] == "r1"
    assert post(ana, "/r2/comments", {"text": "Why?", "section": "metrics", "against": "r9"}).status_code == 404
    assert post(ana, "/r2/comments", {"text": "", "section": "x"}).json()["code"] == "invalid_comment"
    pk = written.json()["id"]
    assert post(ana, f"/r2/comments/{pk}/resolve", {}).json()["resolved_by"] == "ana"
    assert post(ana, f"/r2/comments/{pk}/resolve", {}).status_code == 409
    assert post(ana, f"/r1/comments/{pk}/resolve", {}).status_code == 404
    assert ana.get(f"{HERE}/r2/comments?open=true").json()["results"] == []
    assert len(ana.get(f"{HERE}/r2/comments").json()["results"]) == 1


def test_a_release_says_that_it_was_rolled_back_in_one_query_for_all(
    ana: Client, release: Release, django_assert_max_num_queries: Any
) -> None:
    serves(release)
    bad = make_release(release.model)
    put(started(candidate=bad), "rolled_back", weight_bp=0, reason="Errors.")
    for _ in range(5):
        make_release(release.model)
    with django_assert_max_num_queries(8):
        told = {one["name"]: one["rolled_back"] for one in ana.get(HERE).json()["results"]}
    assert [one["environment"] for one in told["r2"]] == ["production"] and told["r1"] == told["r3"] == []
    assert ana.get(f"{HERE}/r2").json()["rolled_back"][0]["why"] == "Errors."
