"""When a model may sleep, over the API, on the command line and on its page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.actions import actor_for, issue_token
from accounts.core.access import Role
from registry.models import Release
from serving.models import Sleep
from serving.targets.core.sleep import LEAST_S, UNKNOWN_WAKE_S
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.pages.test_model_tabs import HOSTILE, signed_in
from tests.support.worlds.factories import (
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
    make_user,
)
from tests.support.worlds.rollout_setup import production, serves

pytestmark = pytest.mark.django_db
URL = "/api/v1/models/sentiment/sleep"
WHERE = {"environment": "production"}


@pytest.fixture
def release() -> Release:
    found = make_release(make_model("sentiment"))
    serves(found)
    make_server(make_replica(found, production(), state="ready", claim={"memory_mib": 512}), memory_bytes=300 * 2**20)
    return found


@pytest.fixture
def dev() -> Client:
    user = make_user("dev", is_admin=True)
    token = issue_token(user=user, name="test", actor=actor_for(user))
    return Client(headers={"Authorization": f"Bearer {token}"})


def post(client: Client, to: str = "", version: str = "*", **body: Any) -> Any:
    return client.post(f"{URL}{to}", {**WHERE, **body}, "application/json", headers={"If-Match": version})


def test_what_was_never_said_and_what_is(dev: Client, release: Release) -> None:
    (told,) = dev.get(URL).json()["results"]
    assert told == {
        "environment": "production", "version": 0, "unload_after_s": None, "yields_after_s": None, "loads_on_demand": True,
        "reason": "", "changed_by": "", "state": "awake", "state_since": None, "state_reason": "", "state_by": "",
        "retry_after_s": 0, "trouble": "", "quiet_since": None, "kept_awake": "Nobody said that it may sleep.", "needs": [],
        "declared_mib": 512, "measured_mib": 300,
    }  # fmt: skip
    assert not Sleep.objects.exists()
    answer = post(dev, version='"0"', unload_after_s=900, yields_after_s=600, reason="It is rarely asked.")
    assert answer.status_code == 200 and answer.headers["ETag"] == '"2"'
    assert (answer.json()["unload_after_s"], answer.json()["changed_by"]) == (900, "dev")
    assert post(dev, version='"0"', unload_after_s=900).json()["code"] == "stale"
    assert post(dev).json()["unload_after_s"] is None


@pytest.mark.parametrize("after", [0, LEAST_S - 1, "soon", 2.5, True])
def test_what_is_no_time_to_sleep_after_is_refused(dev: Client, release: Release, after: Any) -> None:
    assert post(dev, unload_after_s=after).status_code == 422
    assert post(dev, unload_after_s=400, yields_after_s=500).json()["code"] == "sleep_rule"
    assert not Sleep.objects.exists()


def test_where_it_cannot_sleep_is_told(dev: Client, release: Release) -> None:
    assert post(dev, environment="nowhere").status_code == 404
    make_environment("empty")
    for verb in ("", "/begin", "/end"):
        assert post(dev, verb, environment="empty").json()["code"] == "not_served"
    assert not Sleep.objects.exists()


def test_it_is_put_to_sleep_and_woken(dev: Client, release: Release) -> None:
    slept = post(dev, "/begin", reason="a holiday").json()
    told = ("state", "state_reason", "state_by", "retry_after_s")
    assert [slept[name] for name in told] == ["asleep", "a holiday", "dev", UNKNOWN_WAKE_S]
    assert post(dev, "/begin").json()["version"] == slept["version"]
    assert post(dev, "/end").json()["state"] == "waking"


def test_why_it_is_awake_is_told(dev: Client, release: Release) -> None:
    post(dev, unload_after_s=900)
    Sleep.objects.update(trouble="What the gateways count is not known (gateway-2), and that is never taken for quiet.")
    (found,) = dev.get(URL).json()["results"]
    assert found["kept_awake"] == found["trouble"] != ""
    shown = signed_in(make_user("ana", team=release.model.team.slug)).get(reverse("model_sleep", args=["sentiment"]))
    assert shown.content.decode().count("is not known (gateway-2)") == 1
    post(dev, unload_after_s=600)
    assert not Sleep.objects.get().trouble
    Sleep.objects.update(quiet_since=timezone.now())
    assert dev.get(URL).json()["results"][0]["kept_awake"].endswith("s ago; it may sleep after 600 s.")


def test_the_page(release: Release) -> None:
    member = signed_in(make_user("ana", team=release.model.team.slug))
    page, rule, begin, end = (
        reverse(f"model_{name}", args=["sentiment"]) for name in ("sleep", "sleep_rule", "sleep_begin", "sleep_end")
    )
    shown = member.get(page).content.decode()
    assert "<strong>300 MiB</strong> measured" in shown and "Nobody said that it may sleep" in shown
    body = {**WHERE, "version": "0", "unload_after_s": "900", "loads_on_demand": "on", "reason": HOSTILE}
    assert member.post(rule, body).headers["Location"] == page
    assert Sleep.objects.get().unload_after_s == 900 and HOSTILE not in member.get(page).content.decode()
    for wrong in ({"unload_after_s": "soon"}, {"unload_after_s": "5"}, {"version": "0"}, {"environment": "nowhere"}):
        answer = member.post(rule, {**body, "version": "2", **wrong})
        assert answer.status_code >= 400 and "Keep this rule" in answer.content.decode()
    typed = member.post(rule, {**body, "version": "2", "unload_after_s": "77"}).content.decode()
    assert 'value="77"' in typed
    assert member.post(begin, WHERE).headers["Location"] == page
    asleep = member.get(page).content.decode()
    assert "Wake it" in asleep and "Put to sleep now" not in asleep and f"retry after {UNKNOWN_WAKE_S} s" in asleep
    member.post(end, WHERE)
    assert Sleep.objects.get().state == "waking"


def test_who_only_reads_sees_no_form(release: Release) -> None:
    viewer = signed_in(make_user("vi", team=release.model.team.slug, role=Role.VIEWER))
    shown = viewer.get(reverse("model_sleep", args=["sentiment"])).content.decode()
    assert "Memory of its servers" in shown and "Keep this rule" not in shown
    for name in ("sleep_rule", "sleep_begin", "sleep_end"):
        body = {**WHERE, "version": "0"}
        assert viewer.post(reverse(f"model_{name}", args=["sentiment"]), body).status_code == 403
