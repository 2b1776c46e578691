"""Which tenant was shed: told over REST from what gateways counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from registry.models import ServedModel
from rollouts.engine.stable_traffic import _WatchedModel
from rollouts.models import TrafficRecord
from rollouts.queries import tenants
from serving.ports import GatewayCounters, TenantCounters
from serving.traffic.actions.routes import set_route
from serving.traffic.core.buckets import TENANT_EDGES_US
from tests.api.registry_calls import refused, send_json
from tests.support.worlds.factories import make_environment, make_release

pytestmark = pytest.mark.django_db
POLICY = {"tenants": {"header": "x-tenant", "named": {"acme": {"requests_per_s": 20}}, "others": {"requests_per_s": 5}}}


#: Of the 300 answers more, 200 within 20 ms, and all within 100.
FAST = {edge: 0 if edge < 20_000 else 200 if edge < 100_000 else 300 for edge in TENANT_EDGES_US}


def reading(epoch: str, at: float, **by_tenant: TenantCounters) -> GatewayCounters:
    return GatewayCounters("gateway-1", epoch, datetime.fromtimestamp(at, UTC), {}, by_tenant=by_tenant)


def test_what_each_tenant_sent_is_told_with_what_was_refused(dev: Any) -> None:
    model, environment = ServedModel.objects.get(slug="sentiment"), make_environment("production")
    change = send_json(
        dev, "patch", "/models/sentiment", {"traffic_policy": POLICY}, **{"If-Match": str(model.version)}
    )
    assert change.status_code == 200 and change.json()["traffic_policy"] == POLICY
    at = "/api/v1/environments/production/models/sentiment/tenants"
    before = dev.get(at).json()
    assert [one["tenant"] for one in before["tenants"]] == ["acme", "others"] and before["counted_at"] is None

    minute_ago = timezone.now().timestamp() - 60
    watched = _WatchedModel(environment.pk, model.pk, model.slug, "")
    watched.take_callers("gateway-1", reading("a", minute_ago, acme=TenantCounters(1000)))  # of before anybody looked
    watched.take_callers("gateway-1", reading("a", minute_ago, acme=TenantCounters(1600, 300, latency_us=FAST)))
    watched.take_callers(
        "gateway-1", reading("b", minute_ago, acme=TenantCounters(300, latency_us=FAST), gone=TenantCounters(3))
    )
    TrafficRecord.objects.create(
        environment=environment, model=model, tenants=watched.tenants.to_json(), at=timezone.now()
    )
    found = dev.get(at).json()
    acme, others, gone = found["tenants"]
    assert (acme["quota_per_s"], acme["requests_per_s"], acme["over_quota_per_s"]) == (20.0, 15.0, 5.0)
    assert found["minutes"] == 1  # the minutes before had no requests
    assert (acme["p50_ms"], acme["p99_ms"], gone["p50_ms"]) == (20.0, 100.0, None)
    assert (others["quota_per_s"], others["requests_per_s"]) == (5.0, 0.0)
    assert (gone["tenant"], gone["quota_per_s"], gone["requests_per_s"]) == ("gone", None, 0.05)


def test_what_each_class_sent_is_told_with_what_was_shed(dev: Any) -> None:
    model, environment = ServedModel.objects.get(slug="sentiment"), make_environment("production")
    policy = {
        "classes": {
            "header": "x-class",
            "default": "interactive",
            "named": {"batch": {"share_pct": 25, "tenants": []}, "interactive": {"share_pct": 90, "tenants": []}},
        }
    }
    change = send_json(
        dev, "patch", "/models/sentiment", {"traffic_policy": policy}, **{"If-Match": str(model.version)}
    )
    assert change.status_code == 200 and change.json()["traffic_policy"] == policy
    watched = _WatchedModel(environment.pk, model.pk, model.slug, "")
    at = datetime.fromtimestamp(timezone.now().timestamp() - 60, UTC)
    for batch in (TenantCounters(10), TenantCounters(610, shed=300, latency_us=FAST)):
        counts = {"batch": batch, "interactive": TenantCounters(5)}
        watched.take_callers("gateway-1", GatewayCounters("gateway-1", "a", at, {}, by_class=counts))
    TrafficRecord.objects.create(
        environment=environment, model=model, classes=watched.classes.to_json(), at=timezone.now()
    )
    found = dev.get("/api/v1/environments/production/models/sentiment/tenants").json()
    assert [one["name"] for one in found["classes"]] == ["interactive", "batch"] and found["tenants"] == []
    interactive, batch = found["classes"]
    assert (interactive["share_pct"], interactive["is_default"], interactive["requests_per_s"]) == (90, True, 0.0)
    assert (batch["share_pct"], batch["requests_per_s"], batch["shed_per_s"]) == (25, 10.0, 5.0)
    assert (batch["p50_ms"], batch["p99_ms"], interactive["p50_ms"]) == (20.0, 100.0, None)
    assert [one["code"] for one in found["warnings"]] == ["classes_exceed_bound"]


def test_a_policy_that_cannot_be_kept_is_refused_by_field(dev: Any) -> None:
    model = ServedModel.objects.get(slug="sentiment")
    bad = {"traffic_policy": {"tenants": {"header": "Host", "others": {"requests_per_s": 0}}}}
    errors = refused(
        send_json(dev, "patch", "/models/sentiment", bad, **{"If-Match": str(model.version)}), 422, "invalid_model"
    )
    assert set(errors) == {"traffic_policy.tenants.header", "traffic_policy.tenants.others.requests_per_s"}


def test_quotas_above_what_is_proven_are_warned_of(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, environment = ServedModel.objects.get(slug="sentiment"), make_environment("production")
    ServedModel.objects.filter(pk=model.pk).update(traffic_policy=POLICY)
    model.refresh_from_db()
    stable = make_release(model)
    set_route(actor=Actor.system("test"), environment=environment, model=model, stable=stable, reason="It serves.")
    serving = tenants.ReleaseStanding(count=2)
    monkeypatch.setattr(tenants, "standing_of", lambda _: {(environment.pk, str(stable.pk)): serving})
    for proven, codes in ((10.0, ["quotas_exceed_capacity"]), (12.5, []), (None, [])):
        monkeypatch.setattr(tenants, "proven_per_s", lambda _, proven=proven: proven)
        assert [one.code for one in tenants.tenants_view(model, environment).warnings] == codes
