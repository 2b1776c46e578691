"""What a policy may say of classes of requests, and what gateways make of it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from registry.core.contract import read_settings
from registry.core.traffic import shares_pct
from registry.models import ServedModel
from rollouts.core.request_mix import OF_CLASS, Mix, mix_of_classes
from serving.ports import TenantCounters
from serving.traffic.adapters.envoy_hosts import _hosts
from serving.traffic.adapters.envoy_stats import parse
from serving.traffic.control_plane.clusters import clusters, endpoints
from serving.traffic.control_plane.model_settings import classes_of
from serving.traffic.control_plane.request_classes import CLASS_HEADER
from serving.traffic.control_plane.tenants import tenant_metadata
from serving.traffic.control_plane.virtual_hosts import vhost
from serving.traffic.core.request_classes import ONE_POOL, Pool, RequestClasses
from serving.traffic.core.routes import Arm, ModelRoute, ServerAddress

QUOTA = {"requests_per_s": 10}
TENANTS = {"header": "x-tenant", "named": {"gold": QUOTA, "tin": QUOTA}, "others": QUOTA}
CLASSES: dict[str, Any] = {
    "header": "x-class",
    "default": "interactive",
    "named": {
        "interactive": {"share_pct": 70, "tenants": ["gold"]},
        "batch": {"share_pct": 20, "tenants": ["others"]},
        "nightly": {"share_pct": 10, "tenants": []},
    },
}
READ = RequestClasses(
    "x-class",
    "interactive",
    (Pool("", 70), Pool("batch", 20), Pool("nightly", 10)),
    (("gold", "interactive"), ("others", "batch")),
)
A = Arm("r1", "sha256:" + "a" * 64, (ServerAddress("127.0.0.1", 9001, 9002),), max_in_flight=100)
B = Arm("r2", "sha256:" + "b" * 64, (ServerAddress("127.0.0.1", 9011, 9012),), max_in_flight=100)
PLAIN = ModelRoute(1, "m", 5, A, B, candidate_bp=2_500)
CLASSED = dataclasses.replace(PLAIN, classes=READ)


def wrong(tenants: Any = TENANTS, **changes: Any) -> set[str]:
    classes = {name: value for name, value in {**CLASSES, **changes}.items() if value is not None}
    policy = {"classes": classes, **({"tenants": tenants} if tenants else {})}
    return {one.field.removeprefix("traffic_policy.classes.") for one in read_settings({"traffic_policy": policy})[1]}


def named(**shares: int) -> dict[str, Any]:
    return {name: {"share_pct": share} for name, share in shares.items()}


def test_a_policy_is_read_as_it_stands() -> None:
    stated = {"traffic_policy": {"tenants": TENANTS, "classes": CLASSES}}
    assert read_settings(stated) == (stated, [])
    assert classes_of(ServedModel(traffic_policy=stated["traffic_policy"])) == READ
    assert classes_of(ServedModel(traffic_policy={})) is None
    assert shares_pct(stated["traffic_policy"]) == 100 and shares_pct({}) is None


def test_a_policy_that_was_stored_and_cannot_be_read_leaves_all_requests_their_places() -> None:
    bad = {"classes": {"default": "gone", "named": named(batch=20)}}
    assert classes_of(ServedModel(slug="m", traffic_policy=bad)) is None


def test_what_is_wrong_is_named() -> None:
    assert wrong() == set()
    assert wrong(default=None) == {"default"} == wrong(default="gone")
    assert wrong(header="X-Class") == {"header"} == wrong(header="x-sluicegate-class")
    assert wrong(named={}) == {"named"} == wrong(named=None)
    for name in ("a_b", "a.b", "Batch", "-a", "a" * 21):
        assert wrong(named={**named(interactive=50), name: {"share_pct": 5}}) == {f"named.{name}"}
    for share in (0, 101, 2.5, None):
        assert wrong(named=named(interactive=50, batch=share)) == {"named.batch.share_pct"}
    assert wrong(named=named(interactive=1, a=1, b=1, c=1, d=1)) == {"named"}
    assert wrong(named=named(interactive=100, batch=100)) == set()
    assert wrong(named=named(interactive=100, batch=100, nightly=1)) == {"named"}


def test_a_class_is_told_by_a_header_or_by_tenants_that_there_are() -> None:
    assert wrong(header=None) == set()
    assert wrong(header=None, named=named(interactive=50, batch=20)) == {"header"}
    unknown = {"named.interactive.tenants", "named.batch.tenants"}
    assert wrong(None) == unknown
    assert wrong(named={**CLASSES["named"], "batch": {"share_pct": 5, "tenants": ["lead"]}}) == {"named.batch.tenants"}
    twice = {**CLASSES["named"], "nightly": {"share_pct": 5, "tenants": ["gold"]}}
    assert wrong(named=twice) == {"named.nightly.tenants"}


def test_a_model_without_classes_has_what_it_had() -> None:
    """Its clusters, routes and metadata: nothing of classes is in any of them."""
    assert PLAIN.pools == ONE_POOL
    assert set(clusters(PLAIN)) == {
        f"m_{name}_{protocol}{more}"
        for protocol in ("http", "grpc")
        for name, more in [("a" * 12, kind) for kind in ("", "_again", f"_or_{'b' * 12}")]
        + [("b" * 12, kind) for kind in ("", "_streams", "_spare")]
        + [("b" * 12, f"{kind}_or_{'a' * 12}") for kind in ("", "_full", "_streams")]
    }
    host = vhost(PLAIN, forced_key="key")
    assert "class" not in json.dumps(host)
    assert "tenants" not in host["metadata"]["filter_metadata"]
    assert {one["name"] for one in host["routes"]} == {
        "forced", "forced_grpc", "no_release", "no_streams", "own_answer", "split", "split_grpc", "stream", "question",
        "question_grpc", "refused", "not_offered", "incoming",
    }  # fmt: skip
    assert CLASS_HEADER not in json.dumps(host)


def bound(cluster: dict[str, Any]) -> tuple[int, int]:
    (first,) = [one for one in cluster["circuit_breakers"]["thresholds"] if one["priority"] == "DEFAULT"]
    return first["max_requests"], first["max_pending_requests"]


def test_each_class_has_its_share_of_the_places_on_the_same_servers() -> None:
    found, where = clusters(CLASSED), endpoints(CLASSED)
    stable = f"m_{'a' * 12}_http"
    assert [bound(found[stable + more]) for more in ("", "-batch", "-nightly")] == [(35, 35), (10, 10), (5, 5)]
    assert where[f"{stable}-batch"]["endpoints"] == where[stable]["endpoints"]
    assert found[f"{stable}-batch"]["metadata"] == found[stable]["metadata"]
    candidate = f"m_{'b' * 12}_grpc-batch"
    fallback = found[f"{candidate}_or_{'a' * 12}"]["cluster_type"]["typed_config"]["clusters"]
    assert fallback == [candidate, f"m_{'a' * 12}_grpc-batch"]
    streams = [name for name in clusters(PLAIN) if "_streams" in name]  # of no class
    assert len(found) == 3 * len(clusters(PLAIN)) - 2 * len(streams)
    assert found[f"{candidate}_full_or_{'a' * 12}"]["metadata"]["filter_metadata"]["sluicegate"]["shed"] == "gateway"


def test_all_classes_together_have_one_place_more_each_at_most() -> None:
    shares = [pool.share_pct for pool in READ.pools]
    for most in range(1, 60):
        arm = dataclasses.replace(A, max_in_flight=most)
        for gateways in (1, 2, 3):
            one = dataclasses.replace(CLASSED, stable=arm, gateways=gateways)
            places = [one.in_flight(one.stable, share) for share in shares]
            assert min(places) >= 1 and most <= 2 * gateways * sum(places) < most + 2 * gateways * len(shares)


def test_the_split_is_the_same_for_every_class() -> None:
    unary = [one for one in vhost(CLASSED)["routes"] if one["name"].startswith("split")]
    names = [one["name"] for one in unary]
    pools = [f"split{protocol}{pool}" for protocol in ("_grpc", "") for pool in ("-nightly", "-batch", "")]
    assert names == [
        name for name in pools for _ in range(2)
    ]  # the candidate's share and the rest; what has no class comes last
    drawn = [one["match"].get("runtime_fraction", {}).get("default_value", {}).get("numerator") for one in unary]
    assert drawn == [2500, None] * 6
    for one in unary[2:4]:
        assert one["match"]["headers"][:1] == [{"name": CLASS_HEADER, "string_match": {"exact": "batch"}}]
    where = {"cluster": None, "inline_cluster_specifier_plugin": None}
    for first in (0, 1):
        alike = [{**one["route"], **where} for one in unary[first:6:2]]
        assert alike[0] == alike[1] == alike[2]
        assert len({json.dumps(one["metadata"]) for one in unary[first::2]}) == 1


def test_the_filter_is_told_of_classes_by_the_side_of_tenants() -> None:
    told = tenant_metadata(None, READ)
    assert told["classes"] == {"interactive": True, "batch": True, "nightly": True}
    assert (told["class_header"], told["default_class"]) == ("x-class", "interactive")
    assert told["class_of"] == {"gold": "interactive", "others": "batch"} and "header" not in told
    with pytest.raises(ValueError, match="places"):
        Pool("batch", 0)


def test_requests_are_counted_for_their_release_whatever_their_class() -> None:
    line = (
        "sli.request.model.m.digest.d.entry.{}.slot.1.by.{}.tries.{}.code.{}.grpc.-.flags.{}: B512(0,{}) B1e+15(0,{})"
    )
    lines = [
        line.format("split", "d", 1, 200, "-", 4, 5),
        line.format("split-batch", "d", 1, 200, "-", 3, 3),
        line.format("split-batch", "d", 1, 429, "UO", 7, 7),
        line.format("split-batch", "d", 1, 500, "-", 1, 1),
        line.format("forced", "d", 1, 200, "-", 9, 9),
        line.format("splitting-batch", "d", 1, 200, "-", 9, 9),
    ]
    found = parse("\n".join(lines), {})["m"].counters("g", "e", None)  # type: ignore[arg-type]
    arm = found.by_release["d"]
    assert (arm.routed, arm.decided, arm.failed, arm.shed) == (16, 9, 1, 7)
    assert arm.by_class == {"batch": 4} and found.by_slot[1]["d"].by_class == {"batch": 4}
    assert arm.size_bytes[512] == 15


def test_what_was_shed_is_told_by_class() -> None:
    line = "sli.class.model.m.class.batch.entry.{}.code.{}.grpc.-.flags.{}: B20(0,{}) B100(0,{})"
    page = "\n".join([line.format("split-batch", 200, "-", 3, 9), line.format("split-batch", 429, "UO", 7, 7)])
    found = parse(page, {})["m"]
    assert found.by_class == {"batch": TenantCounters(16, shed=7)} and found.by_tenant == {}
    assert found.by_class["batch"].latency_us[20_000] == 3


def test_a_servers_counts_are_those_of_all_classes_together() -> None:
    def status(name: str, total: int) -> dict[str, Any]:
        address = {"socket_address": {"address": "127.0.0.1", "port_value": 9001}}
        stats = [{"name": "rq_total", "value": str(total)}, {"name": "rq_success", "value": str(total)}]
        return {"name": name, "host_statuses": [{"address": address, "stats": stats}]}

    base = f"m_{'a' * 12}_http"
    names = (base, f"{base}-batch", f"{base}-batch_or_{'b' * 12}", f"{base}_or_{'b' * 12}", f"{base}s", f"x{base}")
    page = {"cluster_statuses": [status(name, 10**i) for i, name in enumerate(names)]}
    wanted = ("m", "a" * 12)
    assert sum(counts.attempts for _, counts in _hosts(page, wanted)) == 11
    page["cluster_statuses"].append({"name": f"other_{'a' * 12}_http", "host_statuses": None})  # at which nobody looks
    assert [counts.attempts for _, counts in _hosts(page, wanted)] == [1, 10]


def test_a_class_that_one_arm_sheds_makes_the_mix_differ() -> None:
    batch = f"{OF_CLASS}batch"
    assert mix_of_classes({}, 500, {}, 500) == Mix()
    alike = mix_of_classes({batch: 200}, 500, {batch: 1900}, 5000)
    assert alike == Mix((200, 300), (1900, 3100)) and not alike.differs
    assert mix_of_classes({batch: 200}, 500, {batch: 500}, 5000).differs
    assert mix_of_classes({batch: 200}, 500, {}, 5000).differs
