"""Tenants on a real gateway: one floods, the others lose nothing; nobody gets out of a quota by another name, or in without a proxy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.ports import TenantCounters
from serving.traffic.core.tenants import Quota, Tenants
from tests.support.rigs.gateway_rig import FORCES, Rig, grpc_infer, rig

pytestmark = [pytest.mark.real("envoy")]
#: Buckets that do not fill again while a test lasts: what passes is what a bucket holds, however busy the machine is.
NEVER = 1e-4
TENANTS = Tenants(
    "x-tenant", (("acme", Quota(NEVER, 10)), ("bolt", Quota(NEVER, 20)), ("core", Quota(NEVER, 20))), Quota(NEVER, 6)
)
#: Callers of these tests come from this machine.
TRUSTED = ("127.0.0.0/8",)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path, trusted=TRUSTED) as built:
        built.apply(None, tenants=TENANTS)
        yield built


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path, trusted=("10.20.0.0/16",)) as built:
        built.apply(None, tenants=TENANTS)
        yield built


def ask(parts: Rig, tenant: str, times: int) -> Counter[int]:
    return Counter(parts.envoy.http(headers={"x-tenant": tenant}).status for _ in range(times))


def test_a_tenant_that_floods_gets_its_quota_and_takes_nothing_from_the_others(parts: Rig) -> None:
    assert ask(parts, "acme", 60) == {200: 10, 429: 50}
    assert ask(parts, "bolt", 20) == ask(parts, "core", 20) == {200: 20}
    assert ask(parts, "nobody", 6) == {200: 6}
    assert parts.stable.hits == 56


def test_names_that_are_made_up_share_one_bucket_with_those_who_name_nobody(parts: Rig) -> None:
    found = sum((ask(parts, f"tenant-{i}", 1) for i in range(30)), Counter())
    assert found == {200: 6, 429: 24}
    assert parts.envoy.http().status == 429
    assert ask(parts, "ACME", 1) == ask(parts, "acme, bolt", 1) == {429: 1}
    assert ask(parts, "acme", 1) == {200: 1}


def test_a_header_that_no_trusted_proxy_sent_is_not_believed(untrusted: Rig) -> None:
    assert ask(untrusted, "bolt", 20) == {200: 6, 429: 14}
    assert ask(untrusted, "core", 1) == {429: 1}


def test_what_a_quota_refuses_says_so_over_http_and_over_grpc(parts: Rig) -> None:
    ask(parts, "acme", 10)
    refused = parts.envoy.http(headers={"x-tenant": "acme"})
    assert refused.status == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-sluicegate-shed"] == "tenant quota"
    assert b"quota of this tenant" in refused.body
    with parts.envoy.channel() as channel:
        assert grpc_infer(channel, metadata=(("x-tenant", "acme"),))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert grpc_infer(channel, metadata=(("x-tenant", "bolt"),))[0] is grpc.StatusCode.OK


def test_a_forced_release_is_no_way_out_of_a_quota(parts: Rig) -> None:
    parts.apply(None, tenants=TENANTS, allows_forced=True)
    heads = {**FORCES, "x-tenant": "acme", "x-sluicegate-release": "r1"}
    assert Counter(parts.envoy.http(headers=heads).status for _ in range(15)) == {200: 10, 429: 5}


def test_several_gateways_share_a_quota(parts: Rig) -> None:
    parts.apply(None, tenants=TENANTS, gateways=2)
    assert ask(parts, "acme", 15) == {200: 5, 429: 10}
    assert ask(parts, "nobody", 9) == {200: 3, 429: 6}


def test_what_a_quota_refused_is_counted_by_tenant_and_held_against_no_release(parts: Rig) -> None:
    ask(parts, "acme", 12)
    ask(parts, "bolt", 2)
    for i in range(8):
        ask(parts, f"made-up-{i}", 1)
    parts.stable.mode = "error"
    ask(parts, "core", 1)
    found = parts.counters()
    assert found.by_tenant == {
        "acme": TenantCounters(requests=12, over_quota=2),
        "bolt": TenantCounters(requests=2),
        "core": TenantCounters(requests=1, errors=1),
        "others": TenantCounters(requests=8, over_quota=2),
    }
    timed = {name: one.latency_us.get(30_000_000, 0) for name, one in found.by_tenant.items()}
    assert timed == {"acme": 10, "bolt": 2, "core": 0, "others": 6}  # answers alone
    arm = found.by_release[Rig.STABLE]
    assert (arm.decided, arm.failed, arm.shed) == (19, 1, 0)
    assert found.user_errors == 1


def test_a_model_without_tenants_limits_nobody_and_counts_none(parts: Rig) -> None:
    parts.apply(None)
    assert ask(parts, "acme", 30) == {200: 30}
    assert parts.counters().by_tenant == {}


def test_a_bucket_fills_again_at_its_rate(parts: Rig) -> None:
    parts.apply(None, tenants=Tenants("x-tenant", (("acme", Quota(10.0, 1)),), Quota(NEVER, 1)))
    assert ask(parts, "acme", 1) == {200: 1}
    began, passed = time.monotonic(), 0
    while passed < 10:
        passed += ask(parts, "acme", 1)[200]
    assert time.monotonic() - began >= 0.8
