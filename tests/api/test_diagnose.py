"""The diagnosis of a model's traffic over the API, the command line and the page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.core.access import Role
from insights.core.diagnosis.shift import Shape
from insights.queries.diagnosis import explain
from ledger.queries import clock
from rollouts.core.latency import CLASSES
from rollouts.models import TrafficRecord
from sluicegate.cli.diagnose import explained
from tests.pages.clients import signed_in
from tests.support.worlds.alarm_setup import burning
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import promoted
from tests.support.worlds.series_setup import kept

pytestmark = pytest.mark.django_db
ONSET = 25  # minutes ago
SLOW = CLASSES - 2


def took(quick: int, slow: int) -> list[int]:
    return [quick, *[0] * (SLOW - 1), slow, 0]


def recorded(*, minutes: int = 60, tenants: bool = True, worse: str = "acme") -> Any:
    """A model whose tenant `worse` has been slow and failing for ONSET minutes; promoted long ago."""
    rollout, _ = promoted()
    now = timezone.now()
    last = int(now.timestamp() // 60)
    rows: dict[str, list[Any]] = {"acme": [], "other": []}
    whole = []
    for at in range(last - minutes, last):
        wave = at % 3
        for name, own in rows.items():
            bad = 90 if name == worse and at >= last - ONSET else 3
            own.append([at, 300, 0, 0, bad + wave, took(300 - bad - wave, 0)])
        total = sum(own[-1][4] for own in rows.values())
        whole.append([at, 600, total, 50_000, 0])
    TrafficRecord.objects.update_or_create(
        environment=rollout.environment, model=rollout.model,
        defaults={"traffic": {"minutes": whole}, "tenants": rows if tenants else {}, "at": now},
    )  # fmt: skip
    return rollout


def read(rollout: Any, **query: str) -> dict[str, Any]:
    client = APIClient()
    client.force_authenticate(make_user("ana", team="search", role=Role.VIEWER))
    answer = client.get(f"/api/v1/models/{rollout.model.slug}/diagnosis", query)
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def test_the_tenant_is_named_with_its_start() -> None:
    rollout = recorded()
    found = read(rollout)
    assert found["verdict"] == "step" and found["signal"] == "errors"
    onset = clock.now() - timedelta(minutes=ONSET)
    assert abs((timezone.datetime.fromisoformat(found["since"]) - onset).total_seconds()) <= 120
    who = [one for one in found["hypotheses"] if one["kind"] == "who"]
    assert who[0]["subject"] == "tenant acme" and "without it the shift is gone" in who[0]["evidence_for"]
    changes = [one for one in found["hypotheses"] if one["kind"] == "change"]
    assert all(one["next_step"].startswith("sluicegate api GET /events") for one in changes)
    assert any("replica" in one for one in found["missing"])
    lines = explained(found)
    assert any("who: tenant acme" in line for line in lines) and lines[-1].startswith("Unknown: ")


def test_without_tenants_the_start_is_told_and_who_is_missing() -> None:
    found = read(recorded(tenants=False))
    assert found["verdict"] == "step" and not any(one["kind"] == "who" for one in found["hypotheses"])
    assert any("no tenants" in one for one in found["missing"])


def test_a_model_without_counts_cannot_be_explained() -> None:
    rollout, _ = promoted()
    found = read(rollout, since="2h", baseline="1h")
    assert found["verdict"] == "cannot_tell" and "no reading" in found["answer"]
    assert found["hypotheses"] == [] and found["since"] is None
    assert any("no tenants" in one for one in found["missing"])


@pytest.mark.parametrize("since", ["1h", "65min", "90min"])
def test_a_model_without_tenants_is_read_from_kept_series(since: str) -> None:
    rollout, stable = promoted()
    kept(rollout.environment, [rollout.candidate, stable], minutes=120)
    found = read(rollout, since=since)
    assert found["verdict"] == "step", found
    onset = clock.now() - timedelta(minutes=15)
    assert abs((timezone.datetime.fromisoformat(found["since"]) - onset).total_seconds()) <= 180


def test_a_healthy_hour_has_no_shift() -> None:
    assert read(recorded(worse=""))["answer"] == "No shift."


def test_an_instant_that_is_none_is_refused() -> None:
    rollout, _ = promoted()
    client = APIClient()
    client.force_authenticate(make_user("ana", team="search", role=Role.VIEWER))
    answer = client.get(f"/api/v1/models/{rollout.model.slug}/diagnosis", {"since": "yesterday"})
    assert answer.status_code == 422 and answer.json()["code"] == "not_an_instant"


def test_a_future_or_tiny_window_cannot_tell() -> None:
    rollout = recorded()
    for since in ("2100-01-01", "3min"):
        found = explain(rollout.model, rollout.environment, timezone.now(), since)
        assert found.found.shift.shape is Shape.UNKNOWN


def test_the_page_shows_hypotheses_and_an_alarm_links_it() -> None:
    rollout = recorded()
    client = signed_in(make_user("mia", team="search", role=Role.RELEASE_MANAGER))
    page = client.get(reverse("model_diagnosis", args=[rollout.model.slug])).content.decode()
    assert "A step since" in page and "who: tenant acme" in page and "counts by replica" in page
    alarm = burning(rollout.model)
    address = reverse("model_diagnosis", args=[rollout.model.slug])
    week = client.get(address, {"span": "7d"}).content.decode()
    assert '<option value="7d" selected>' in week and '<option value="production" selected>' in week
    assert f'{address}?environment=production">Why?' in client.get(reverse("alarm", args=[alarm.pk])).content.decode()
