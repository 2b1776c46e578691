"""What a traffic policy may say, and what a gateway's part of it is."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.contract import read_settings
from registry.core.traffic import MOST_TENANTS, quotas_per_s
from registry.models import ServedModel
from rollouts.core.latency import NOTHING, Classes, added
from rollouts.core.tenant_traffic import TenantMinute, TenantTraffic
from serving.ports import TenantCounters
from serving.traffic.adapters.envoy_stats import parse
from serving.traffic.control_plane.model_settings import is_idempotent, retries_resets
from serving.traffic.control_plane.tenants import peer_filters, quotas, tenant_metadata
from serving.traffic.core.tenants import Quota, Tenants

POLICY: dict[str, Any] = {
    "tenants": {
        "header": "x-tenant",
        "named": {"gold": {"requests_per_s": 40, "burst": 60}, "tin": {"requests_per_s": 0.5}},
        "others": {"requests_per_s": 10},
    }
}


def wrong(tenants: Any) -> set[str]:
    return {one.field for one in read_settings({"traffic_policy": {"tenants": tenants}})[1]}


def test_a_policy_is_read_as_it_stands() -> None:
    assert read_settings({"traffic_policy": POLICY}) == ({"traffic_policy": POLICY}, [])
    assert quotas_per_s(POLICY) == 50.5
    assert quotas_per_s({}) is None


def test_a_policy_says_whether_a_request_may_be_asked_twice() -> None:
    once = {"traffic_policy": {"idempotent": False}}
    assert read_settings(once) == (once, [])
    assert [is_idempotent(ServedModel(traffic_policy=one)) for one in ({}, {"idempotent": True}, POLICY)] == [True] * 3
    assert not is_idempotent(ServedModel(traffic_policy=once["traffic_policy"]))
    assert Tenants.of(once["traffic_policy"]) is None
    (problem,) = read_settings({"traffic_policy": {"idempotent": "no"}})[1]
    assert problem.field == "traffic_policy.idempotent"


def test_a_policy_says_whether_what_was_in_flight_on_a_dead_server_is_asked_again() -> None:
    again = {"retry_on_reset": True}
    assert read_settings({"traffic_policy": again}) == ({"traffic_policy": again}, [])
    assert [retries_resets(ServedModel(traffic_policy=one)) for one in (again, {}, {"retry_on_reset": False})] == [
        True,
        False,
        False,
    ]
    (problem,) = read_settings({"traffic_policy": {**again, "idempotent": False}})[1]
    assert problem.field == "traffic_policy.retry_on_reset" and "asked twice" in problem.message


def test_what_is_wrong_is_named() -> None:
    at = "traffic_policy.tenants"
    quota = {"requests_per_s": 1}
    assert wrong({"header": "x-tenant"}) == {f"{at}.others"}
    for header in ("X-Tenant", "x tenant", ":path", "x-sluicegate-model", "content-type", "grpc-timeout"):
        assert wrong({"header": header, "others": quota}) == {f"{at}.header"}
    for name in ("others", "a.b", "Gold", "a b"):
        assert wrong({"header": "x-tenant", "named": {name: quota}, "others": quota}) == {f"{at}.named.{name}"}
    for bad in (0, -1, "5", None):
        assert wrong({"header": "x-tenant", "others": {"requests_per_s": bad}}) == {f"{at}.others.requests_per_s"}
    many = {f"t{i}": quota for i in range(MOST_TENANTS + 1)}
    assert wrong({"header": "x-tenant", "named": many, "others": quota}) == {f"{at}.named"}


@pytest.mark.parametrize(
    ("quota", "gateways", "bucket"),
    [
        (Quota(10, 25), 1, (25, 1, 0.1)),
        (Quota(10, 25), 2, (13, 1, 0.2)),
        (Quota(40, 60), 1, (60, 40, 1.0)),
        (Quota(40, 60), 4, (15, 1, 0.1)),
        (Quota(30.4, 1), 1, (30, 30, 1.0)),
        (Quota(0.5, 0.5), 3, (1, 1, 6.0)),
    ],
)
def test_gateways_share_a_quota(quota: Quota, gateways: int, bucket: tuple[int, int, float]) -> None:
    assert quota.bucket(gateways) == bucket


def test_only_names_of_the_policy_have_a_bucket_of_their_own() -> None:
    tenants = Tenants.of(POLICY)
    assert tenants == Tenants("x-tenant", (("gold", Quota(40, 60)), ("tin", Quota(0.5, 0.5))), Quota(10, 10))
    (limits,) = quotas(tenants, 1).values()
    assert [one["entries"] for one in limits["descriptors"]] == [
        [{"key": "tenant", "value": "gold"}],
        [{"key": "tenant", "value": "tin"}],
    ]
    assert limits["token_bucket"] == {"max_tokens": 10, "tokens_per_fill": 1, "fill_interval": "0.100000000s"}
    assert Tenants.of({}) is None and quotas(None, 1) == {} == tenant_metadata(None)


def test_nobody_is_believed_without_a_trusted_network() -> None:
    assert peer_filters(()) == []
    (one,) = peer_filters(("10.20.0.0/16", "192.0.2.7"))
    found = one["typed_config"]["shadow_rules"]["policies"]["proxies"]["principals"]
    assert [list(each["direct_remote_ip"].values()) for each in found] == [["10.20.0.0", 16], ["192.0.2.7", 32]]


def test_what_was_refused_is_told_by_tenant_and_by_why() -> None:
    line = "sli.tenant.model.m.tenant.gold.entry.split.code.{}.grpc.{}.flags.{}: B1e+09({},{})"
    ends = (
        ("200", "-", "-", 5),
        ("429", "-", "RL", 3),
        ("200", "8", "RL", 2),
        ("429", "-", "UO", 4),
        ("500", "-", "-", 1),
    )
    page = "\n".join(line.format(code, grpc, flags, n, n) for code, grpc, flags, n in ends)
    assert parse(page, {})["m"].by_tenant == {"gold": TenantCounters(15, over_quota=5, shed=4, errors=1)}


FAST: Classes = (7, *NOTHING[1:])


def test_the_last_hour_of_each_tenant_is_kept_by_the_minute() -> None:
    found = TenantTraffic().after(600.0, {"gold": TenantMinute(0, 2, 1), "tin": TenantMinute(0)})
    found = found.after(630.0, {"gold": TenantMinute(0, 3, 0, 0, 1, FAST)})
    found = found.after(665.0, {"gold": TenantMinute(0, 1, 0, 0, 0, FAST)})
    assert found.tenants == {"gold": (TenantMinute(10, 5, 1, 0, 1, FAST), TenantMinute(11, 1, 0, 0, 0, FAST))}
    assert TenantTraffic.from_json(found.to_json()) == found
    assert found.since(720.0, 5) == {"gold": TenantMinute(7, 6, 1, 0, 1, added(FAST, FAST))}
    assert found.since(670.0, 5) == {"gold": TenantMinute(6, 5, 1, 0, 1, FAST)}  # the minute that is open is left out
    assert found.after(600.0 + 3600, {}).tenants == {"gold": (TenantMinute(11, 1, 0, 0, 0, FAST),)}
    assert TenantTraffic.from_json({"gold": [[9, 1, 0, 0, 0]]}).tenants == {"gold": (TenantMinute(9, 1),)}  # of before


def test_only_answers_are_timed() -> None:
    line = "sli.tenant.model.m.tenant.gold.entry.split.code.{}.grpc.-.flags.{}: B20(0,{}) B100(0,{})"
    page = "\n".join([line.format(200, "-", 3, 9), line.format(200, "DC", 0, 1), line.format(429, "RL", 7, 7)])
    found = parse(page, {})["m"].by_tenant["gold"]
    assert (found.requests, found.answered) == (17, 10)
    assert (found.latency_us[20_000], found.latency_us[100_000]) == (3, 10)
