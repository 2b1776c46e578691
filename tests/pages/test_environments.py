"""Settings, Environments: what everybody sees, what administrators change, and what is refused, by page and API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ledger.models import Event
from rollouts.core.freeze import FreezeWindow, Stretch, stretches
from serving.models import Environment, Replica, Sleep
from tests.support.worlds.factories import (
    make_environment,
    make_model,
    make_node,
    make_release,
    make_replica,
    make_server,
    make_team,
    make_user,
)
from tests.support.worlds.rollout_setup import OBJECTIVES, production, release_of, serves, started

pytestmark = pytest.mark.django_db
PAGE = "/settings/environments/"


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(make_user("root", is_admin=True))
    return client


@pytest.fixture
def ann() -> Client:
    client = Client()
    client.force_login(make_user("ann", team="search"))
    return client


def test_empty_and_for_whom(root: Client, ann: Client) -> None:
    assert Client().get(PAGE).status_code == 302
    html = ann.get(PAGE).content.decode()
    assert "No environment yet" in html and "takes an administrator" in html and "<form class" not in html
    assert "Make an environment" in root.get(PAGE).content.decode()
    assert root.get(PAGE + "nowhere/").status_code == 404


def test_one_is_made_and_changed(root: Client) -> None:
    form = {"slug": "prod-eu", "title": "<b>EU</b>", "is_routed": "on", "needs_passed_report": "on"}
    question = root.post("/settings/new-environment/", form)
    assert b"only with a passed report" in question.content and not Environment.objects.exists()
    root.post("/settings/new-environment/", {**form, "confirmed": "yes"})
    row = Environment.objects.get()
    assert (row.is_routed, row.needs_approval, row.version) == (True, False, 1)
    assert "<b>EU" not in root.get(PAGE + "prod-eu/").content.decode()
    change = {"title": "EU", "needs_approval": "on", "version": "1"}
    assert b"waits for an approval" in root.post(PAGE + "prod-eu/change/", change).content
    root.post(PAGE + "prod-eu/change/", {**change, "confirmed": "yes"})
    row.refresh_from_db()
    assert (row.title, row.needs_passed_report, row.needs_approval, row.version) == ("EU", False, True, 2)
    assert root.post(PAGE + "prod-eu/change/", {**change, "title": "Late"}).status_code == 412
    told = Event.objects.get(verb="environment.changed").facts
    assert told == {"title": "EU", "needs_passed_report": False, "needs_approval": True}


@pytest.mark.parametrize("slug", ["", "Prod", "a b", "-a", "a" * 41, "\u202e", "<b>", "a/b"])
def test_a_name_that_is_none(root: Client, slug: str) -> None:
    answer = root.post("/settings/new-environment/", {"slug": slug, "title": "Kept", "confirmed": "yes"})
    assert answer.status_code == 422 and 'value="Kept"' in answer.content.decode()
    assert not Environment.objects.exists()


def test_what_sleeps_in_an_environment_is_marked(root: Client) -> None:
    release = make_release(make_model("sentiment"))
    serves(release)
    assert "asleep</span>" not in root.get(PAGE + "production/").content.decode()
    Sleep.objects.create(model=release.model, environment=production(), state="asleep")
    shown = root.get(PAGE + "production/").content.decode()
    assert "sentiment</a>" in shown and "asleep</span>" in shown


def test_others_change_nothing(ann: Client) -> None:
    row = make_environment("production")
    for path, form in (
        ("/settings/new-environment/", {"slug": "mine"}),
        (PAGE + "production/change/", {"title": "Mine", "version": str(row.version)}),
    ):
        assert ann.post(path, {**form, "confirmed": "yes"}).status_code == 403
    api = {"content_type": "application/json", "headers": {"If-Match": "1"}}
    assert ann.patch("/api/v1/environments/production", {"title": "Mine"}, **api).status_code == 403
    assert Environment.objects.get().title == row.title


def test_by_api(root: Client) -> None:
    made = root.post("/api/v1/environments", {"slug": "canary"}, content_type="application/json")
    assert made.status_code == 201 and made.json()["needs_passed_report"] is True and made["ETag"] == '"1"'
    assert root.post("/api/v1/environments", {"slug": "canary"}, content_type="application/json").status_code == 409
    api: dict[str, Any] = {"content_type": "application/json"}
    assert root.patch("/api/v1/environments/canary", {"title": "x"}, **api).status_code == 428
    api["headers"] = {"If-Match": "1"}
    assert root.patch("/api/v1/environments/canary", {"is_routed": False}, **api).status_code == 422
    changed = root.patch("/api/v1/environments/canary", {"allows_forced_release": True}, **api)
    assert changed.json()["version"] == 2 and changed.json()["allows_forced_release"] is True
    assert root.patch("/api/v1/environments/canary", {"title": "x"}, **api).status_code == 412


def test_forced_requests_have_a_new_key_once_they_are_allowed_again(root: Client) -> None:
    old = Environment.objects.create(slug="canary", title="Canary", allows_forced_release=True)  # of an older version

    def change(allows: bool) -> str | None:
        version = Environment.objects.get(pk=old.pk).version
        api: dict[str, Any] = {"content_type": "application/json", "headers": {"If-Match": str(version)}}
        answer = root.patch("/api/v1/environments/canary", {"allows_forced_release": allows}, **api)
        assert answer.status_code == 200
        key: str | None = answer.json()["forced_release_key"]
        return key

    first = root.get("/api/v1/environments/canary").json()["forced_release_key"]
    assert change(True) == first  # nothing changed
    assert change(False) is None
    second = change(True)
    assert second and second != first
    change(False)
    assert change(True) not in {first, second, None}


def test_freezes_of_models_that_one_may_see(ann: Client) -> None:
    window = {"from": "00:00", "to": "24:00", "why": "<i>holidays</i>"}
    for slug, team in (("ranker", "search"), ("other", "ads")):
        make_model(slug, team=make_team(team), objectives=OBJECTIVES, rollout_policy={"freeze_windows": [window]})
    html = ann.get(PAGE).content.decode()
    assert "ranker" in html and "other" not in html and "frozen" in html and "<i>holidays" not in html


def test_stretches_touch_and_run_over_midnight() -> None:
    nights = FreezeWindow(from_min=22 * 60, to_min=6 * 60, why="nights")
    morning = FreezeWindow(days=frozenset({0}), from_min=6 * 60, to_min=7 * 60, why="Monday")
    begin = datetime(2026, 11, 22, 23, tzinfo=UTC)  # a Sunday
    found = stretches([morning, nights], begin, datetime(2026, 11, 23, 23, tzinfo=UTC))
    assert found == (
        Stretch(datetime(2026, 11, 22, 22, tzinfo=UTC), datetime(2026, 11, 23, 7, tzinfo=UTC), ("nights", "Monday")),
        Stretch(datetime(2026, 11, 23, 22, tzinfo=UTC), datetime(2026, 11, 24, 6, tzinfo=UTC), ("nights",)),
    )
    assert stretches([], begin, timezone.now()) == ()


@pytest.mark.parametrize("count", [1, 200])
def test_few_queries(ann: Client, count: int) -> None:
    for i in range(count):
        make_model(f"m{i}", team=make_team("search"), rollout_policy={"freeze_windows": [{"why": "x"}]})
    serves(make_release(make_model("ranker", team=make_team("search"))))
    for path in (PAGE, PAGE + "production/"):
        with CaptureQueriesContext(connection) as seen:
            assert ann.get(path).status_code == 200
        assert len(seen) <= 12, [one["sql"][:90] for one in seen]


def test_one_is_retired_after_the_question_what_would_go_and_brought_back(root: Client, ann: Client) -> None:
    make_node()
    serves(release := release_of())
    make_server(make_replica(release, make_environment("production"), state="ready"))
    form = {"version": "1", "reason": "<b>moved</b>"}
    assert ann.post(PAGE + "production/remove/", {**form, "confirmed": "yes"}).status_code == 403
    question = root.post(PAGE + "production/remove/", form).content.decode()
    assert f"1 server of {release.model.slug} r1 is drained" in question and "Remove Production" in question
    assert Environment.objects.get().retired_at is None
    root.post(PAGE + "production/remove/", {**form, "confirmed": "yes"})
    link = f'href="{PAGE}production/"'
    assert link not in (html := root.get(PAGE).content.decode()) and "Show retired environments (1)" in html
    assert link in root.get(PAGE, {"retired": "yes"}).content.decode()
    html = ann.get(PAGE + "production/").content.decode()
    assert "Retired by root" in html and "&lt;b&gt;moved" in html and "/audit/?environment=production" in html
    assert "Change the rules" not in root.get(PAGE + "production/").content.decode()
    assert "Production" not in root.get("/").content.decode()  # the overview has what serves
    history = root.get("/history/", {"model": release.model.slug, "environment": "production"})
    assert history.status_code == 200 and release.name in history.content.decode()
    Replica.objects.update(state="gone")
    assert b"A server is asked for" in root.post(PAGE + "production/restore/", {"version": "2"}).content
    root.post(PAGE + "production/restore/", {"version": "2", "confirmed": "yes"})
    assert Environment.objects.get().retired_at is None and Replica.objects.filter(is_wanted=True).count() == 1


def test_what_came_after_the_question_is_not_removed_unread(root: Client) -> None:
    make_node()
    serves(release := release_of())
    make_server(make_replica(release, make_environment("production"), state="ready"))
    form = {"version": "1", "reason": ""}

    def read(answer: Any) -> dict[str, str]:
        """What the button of the question sends."""
        return {**form, "confirmed": "yes", "read": dict(answer.context["kept"])["read"]}

    button = read(root.post(PAGE + "production/remove/", form))
    make_server(make_replica(other := release_of(release.model), make_environment("production"), state="ready"))
    again = root.post(PAGE + "production/remove/", button)
    html = again.content.decode()
    assert "has changed since you read it" in html and f"1 server of {other.model.slug} r{other.number} is" in html
    assert Environment.objects.get().retired_at is None and Replica.objects.filter(is_wanted=True).count() == 2
    assert root.post(PAGE + "production/remove/", read(again)).status_code == 302
    assert Environment.objects.get().retired_at is not None


def test_what_is_in_use_is_told_before_the_question(root: Client) -> None:
    serves(release_of(model := release_of().model))
    rollout = started(candidate=release_of(model))
    answer = root.post(PAGE + "production/remove/", {"version": "1", "reason": "kept"})
    html = answer.content.decode()
    assert answer.status_code == 409 and f"rollout abort {rollout.pk}" in html and 'value="kept"' in html


def test_by_api_retired_ones_are_listed_when_asked_for(root: Client) -> None:
    serves(release_of())
    api: dict[str, Any] = {"content_type": "application/json", "headers": {"If-Match": "*"}}
    at = "/api/v1/environments/production"
    assert root.get(f"{at}/remove").json()["is_deleted"] is False
    assert root.post(f"{at}/remove", {"reason": "moved"}, content_type="application/json").status_code == 428
    assert root.post(f"{at}/remove", {"reason": "moved"}, **api).json()["says"]
    assert root.get("/api/v1/environments").json()["results"] == []
    (row,) = root.get("/api/v1/environments?retired=true").json()["results"]
    assert (row["retired_by"], row["retire_reason"]) == ("root", "moved") and root.get(at).json() == row
    refused = root.post(f"{at}/remove", {}, **api)
    assert refused.status_code == 409 and refused.json()["code"] == "environment_retired"
    assert root.get(f"{at}/remove").status_code == 409
    make_node()
    assert root.post(f"{at}/restore", {}, **api).json()["retired_at"] is None
