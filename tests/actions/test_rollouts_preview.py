"""What a preview reckons with, and every warning that it knows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Role
from ledger.core.errors import Invalid, Refused
from ledger.models import Event
from registry.core.coupling import changed_parts
from registry.models import Release, Waiver
from registry.queries import manifest_of
from rollouts.actions.preview import preview_rollout
from rollouts.core.capacity import shortage
from rollouts.models import Observation, Rollout, TrafficRecord
from rollouts.queries.traffic import traffic_of
from serving.models import Replica, ReplicaTarget
from sluicegate.cli.preview import lines
from tests.support.worlds.factories import (
    make_actor,
    make_manifest,
    make_model,
    make_node,
    make_release,
    make_replica,
    make_server,
    resealed,
)
from tests.support.worlds.rollout_setup import (
    OBJECTIVES,
    frozen_now,
    production,
    put,
    release_of,
    report_for,
    serves,
    started,
)

pytestmark = pytest.mark.django_db
STAGE = {"min_s": 1, "min_samples": 10, "deadline_s": 900}


def over_stable(candidate: Any = None, **environment: Any) -> Release:
    """A candidate over a stable release that is warm on a node that is there."""
    production(**environment)
    model = make_model(objectives=OBJECTIVES)
    stable = release_of(model)
    serves(stable)
    make_server(make_replica(stable, production(), state="ready"))
    return release_of(model, **(candidate or {}))


def seen(candidate: Release, policy: Any = None, **over: Any) -> dict[str, Any]:
    return preview_rollout(
        **{"actor": make_actor(), "candidate": candidate, "environment": production(), "policy": policy, **over}
    )


def codes(candidate: Release, policy: Any = None, **over: Any) -> dict[str, str]:
    found = seen(candidate, policy, **over)
    assert all(one["message"].endswith(".") for one in found["warnings"])
    return {one["code"]: one["level"] for one in found["warnings"]}


def message(candidate: Release, code: str, policy: Any = None, **over: Any) -> str:
    return str(next(one["message"] for one in seen(candidate, policy, **over)["warnings"] if one["code"] == code))


def counting(candidate: Release, rate_per_s: float, **state: Any) -> None:
    TrafficRecord.objects.update_or_create(
        environment=production(),
        model=candidate.model,
        defaults={"state": {"rate_per_s": rate_per_s, **state}, "at": timezone.now()},
    )


def test_a_sound_candidate_has_nothing_against_it_and_nothing_is_created() -> None:
    candidate = over_stable()
    report_for(candidate)
    counting(candidate, 100)
    before = Event.objects.count()
    found = seen(candidate)
    (said,) = found["warnings"]
    assert (said["code"], said["level"]) == ("one_server", "note") and found["can_start"]
    assert [one["name"] for one in found["stages"]] == ["start", "step 2", "step 3", "bake"]
    assert found["total_s"] >= 3 * 180 + 1800 and found["stable"] == "r1"
    assert {(one["fail_frac"], one["stage"]) for one in found["detect"]} >= {(0.01, "start"), (0.2, "bake")}
    assert not Rollout.objects.exists() and Event.objects.count() == before


def test_how_long_the_undo_window_stays_open_is_said() -> None:
    candidate = over_stable()
    assert seen(candidate, {"instant_window_s": 20})["undo_window_s"] == 20
    told = "The undo window, back to r1, is 20 s after the promotion: sluicegate rollback"
    assert told in "\n".join(lines(seen(candidate, {"instant_window_s": 20})))
    assert "There is no undo window" in "\n".join(lines(seen(candidate, {"instant_window_s": 0})))
    first = release_of()
    assert seen(first)["undo_window_s"] == 0
    assert "undo window" not in "\n".join(lines(seen(first)))


def test_a_preview_takes_the_right_to_start_and_a_policy_that_can_be_read() -> None:
    candidate = over_stable()
    with pytest.raises(Refused):
        seen(candidate, actor=make_actor(team="elsewhere"))
    with pytest.raises(Invalid):
        seen(candidate, {"preset": "yolo"})


def test_the_report_is_missing_expired_or_old() -> None:
    candidate = over_stable(needs_passed_report=True)
    assert codes(candidate)["report_missing"] == "refused"
    report_for(candidate, policy="sha256:" + "1" * 64)
    assert codes(candidate)["expired_report"] == "refused"
    report_for(candidate, "failed")
    assert codes(candidate)["report_not_passed"] == "refused"
    report_for(candidate)
    assert not {"report_missing", "expired_report", "report_not_passed"} & set(codes(candidate))


def test_a_report_of_long_ago_is_worth_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = over_stable()
    report_for(candidate, gates=[{"gate": "load", "verdict": "passed", "ended_at": timezone.now().isoformat()}])
    now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(days=45))
    assert "load was measured 45 days ago, and holds for 30 days" in message(candidate, "expired_report")


def test_no_stable_and_no_node() -> None:
    candidate = release_of()
    production()
    found = codes(candidate)
    assert found["no_stable"] == "warning" and found["no_node"] == "warning"
    make_node(seen_at=timezone.now() - timedelta(hours=1))
    assert "no_node" in codes(candidate)


def test_what_would_refuse_the_start_is_told_with_its_own_code() -> None:
    candidate = over_stable({"is_code_bearing": True})
    assert codes(candidate)["code_not_waived"] == "refused"
    Waiver.objects.create(release=candidate, manifest_digest=candidate.digest, reason="Read it.")
    assert "code_not_waived" not in codes(candidate)
    robot = make_actor(Role.CI)
    assert codes(candidate, {"preset": "fast"}, actor=robot)["policy_not_yours"] == "refused"
    assert codes(candidate, frozen_now())["frozen_now"] == "refused"
    assert seen(candidate, frozen_now("Closing"))["frozen"]["why"] == "Closing"
    stable = Release.objects.get(model=candidate.model, number=1)
    assert codes(stable)["already_stable"] == "refused"
    put(started(candidate=candidate), "shifting")
    assert codes(release_of(candidate.model))["rollout_active"] == "refused"
    found = seen(candidate)
    assert not found["can_start"]


def test_a_release_that_is_called_by_other_paths_than_stable_is_refused() -> None:
    candidate = over_stable()
    runtime = {**manifest_of(candidate)["runtime"], "server": "llamacpp", "backend": "gguf"}
    assert codes(resealed(candidate, runtime=runtime))["other_calls"] == "refused"


def test_a_coupled_change_names_its_parts() -> None:
    candidate = over_stable()
    assert "coupled_change" not in codes(candidate)  # the artifact alone
    resealed(candidate, runtime={"image": "other@sha256:" + "b" * 64, "server": "triton", "backend": "sluicegate-onnx"})
    assert "changes artifact and runtime image at once against r1" in message(candidate, "coupled_change")


def test_stable_without_a_server_and_a_node_that_is_full() -> None:
    candidate = over_stable()
    assert "no_capacity_for_rollback" not in codes(candidate)
    resealed(candidate, envelope={"host": {"memory_mib_min": 3000}})
    stable = Release.objects.get(model=candidate.model, number=1)
    resealed(stable, envelope={"host": {"memory_mib_min": 2000}})
    node = make_node()
    node.facts = {"memory_bytes": 4 * 2**30}
    node.save()
    assert "declare 5000 MiB of memory together, and it has 4096 MiB" in message(candidate, "no_capacity_for_rollback")
    node.facts = {"memory_bytes": 8 * 2**30}
    node.save()
    assert "no_capacity_for_rollback" not in codes(candidate)
    production().replicas.get().servers.update(is_serving=False)
    assert "no serving server" in message(candidate, "no_capacity_for_rollback")


def test_servers_that_the_nodes_have_no_room_for_are_told_before() -> None:
    candidate = over_stable()
    stable, node = Release.objects.get(model=candidate.model, number=1), make_node()
    node.facts = {"memory_bytes": 1400 << 20}
    node.save()
    resealed(candidate, envelope={"host": {"memory_mib_min": 400}})
    Replica.objects.update(claim={"memory_mib": 400, "devices": {}})
    plan = {"steps": [{**STAGE, "weight_pct": weight} for weight in (25, 50)], "bake": STAGE}
    assert "r2 will have one server: a server problem" in message(candidate, "one_server", plan)
    scale = ReplicaTarget.objects.create(release=stable, environment=production(), replicas=4, changed_by="test")
    assert "r2 will have one server up to 25 %: a server problem" in message(candidate, "one_server", plan)
    assert message(candidate, "needs_replicas", plan) == (
        "95 % needs 4 servers of r2, and the nodes have room for 2: the rollout would wait there. Free room, or add a node."
    )
    ReplicaTarget.objects.filter(pk=scale.pk).update(replicas=2)
    assert "needs_replicas" not in codes(candidate, plan)
    make_node("silent", facts={"memory_bytes": 9000 << 20}, seen_at=timezone.now() - timedelta(seconds=40))
    ReplicaTarget.objects.filter(pk=scale.pk).update(replicas=4)
    assert codes(candidate, plan)["needs_replicas"] == "warning"
    ReplicaTarget.objects.filter(pk=scale.pk).update(replicas=10)
    assert "one_server" not in codes(candidate, plan)


def test_a_node_that_the_candidate_does_not_fit() -> None:
    candidate = over_stable()
    resealed(candidate, envelope={"accelerator": {"vendor": "nvidia", "memory_mib_min": 8000}})
    node = make_node()
    for facts, is_told in (({"gpus": None}, False), ({"gpus": []}, True)):  # what is unknown is no warning
        node.facts = facts
        node.save()
        assert ("does_not_fit" in codes(candidate)) is is_told
    assert "r2 fits no node with its runtime: local: The node has 0 NVIDIA devices; it asks for 1." in message(
        candidate, "does_not_fit"
    )


def test_a_plan_that_loads_on_no_node_is_told_with_the_reason() -> None:
    candidate = over_stable()
    runtime = {**manifest_of(candidate)["runtime"], "backend": "tensorrt"}
    resealed(candidate, runtime=runtime, envelope={"engine": {"builder_version": "10.3"}})
    node = make_node()
    node.runtimes = [{**runtime, "backends": ["tensorrt"], "versions": {"tensorrt": "10.4.0"}}]
    node.save()
    told = message(candidate, "does_not_fit")
    assert "no node with its runtime: local: The node has TensorRT 10.4.0; the plan loads in 10.3 only." in told
    assert "no_node" not in codes(candidate)


def test_traffic_that_is_thin_for_the_policy_or_unknown() -> None:
    candidate = over_stable()
    assert codes(candidate)["traffic_unknown"] == "note"
    counting(candidate, 0.5)
    thin = message(candidate, "thin_traffic")
    assert "start (5 %)" in thin and "One step of 50 % with a holdback of 20 % takes about " in thin
    counting(candidate, 100)
    assert not {"thin_traffic", "traffic_unknown"} & set(codes(candidate))
    assert "longer than its deadline" in message(candidate, "thin_traffic", {"deadline_s": 60})


def test_guards_that_nobody_would_count(settings: Any) -> None:
    candidate = over_stable()
    wrong = {"indicator": "wrong", "max_frac": 0.01}
    query = 'sum(orders_total{release="$release"})'
    external = {"indicator": "external", "label": "orders", "bad_query": query, "total_query": query, "max_frac": 0.1}
    policy = {"guards": [{"indicator": "errors"}, wrong, external]}
    settings.PROBER_ADDRESS = settings.PROMETHEUS_URL = ""
    assert {"no_prober", "no_metrics"} <= set(codes(candidate, policy))
    assert "guard on orders" in message(candidate, "no_metrics", policy)
    dry = {"guards": [{"indicator": "errors"}, {**wrong, "dry_run": True}, {**external, "dry_run": True}]}
    assert not {"no_prober", "no_metrics"} & set(codes(candidate, dry))
    assert "shadowing and the guard on wrong answers count" in message(candidate, "no_prober", {"preset": "careful"})
    alone = {"preset": "careful", "guards": [{"indicator": "errors"}, {**wrong, "dry_run": True}]}
    assert "and shadowing counts nothing" in message(candidate, "no_prober", alone)
    settings.PROBER_ADDRESS, settings.PROMETHEUS_URL = "127.0.0.1:1", "http://127.0.0.1:1"
    assert not {"no_prober", "no_metrics"} & set(codes(candidate, policy))
    assert "unreachable" in message(candidate, "query_says_nothing", policy)


def test_people_that_are_needed_and_a_policy_that_changed() -> None:
    candidate = over_stable()
    assert codes(candidate, {"approvals": {"start": 1}})["approval_needed"] == "warning"  # nobody may
    manager = make_actor(Role.RELEASE_MANAGER)
    assert codes(candidate, {"approvals": {"bake": 1}})["approval_needed"] == "note"
    said = message(candidate, "approval_needed", {"approvals": {"start": 1, "bake": 1}})
    assert said == f"It takes approvals, 1 for start and 1 for bake; approvers: {manager.name}."
    assert codes(candidate, {"approvals": {"start": 1}}, actor=manager)["approval_needed"] == "warning"  # not oneself
    put(started(candidate=candidate), "rolled_back")
    assert "policy_changed" not in codes(candidate)
    assert "another policy: budget_bad differs" in message(candidate, "policy_changed", {"budget_bad": 7})


# --- traffic ----------------------------------------------------------------------------------------------------------


def observed(
    rollout: Rollout,
    first: int,
    last: int,
    attempts: tuple[int, int],
    errors: int = 0,
    slow: tuple[Any, Any] = ({}, {}),
) -> None:
    began = rollout.created_at
    Observation.objects.create(
        rollout=rollout,
        first_tick=first,
        tick=last,
        from_at=began + timedelta(seconds=first),
        at=began + timedelta(seconds=last),
        state="shifting",
        weight_bp=500,
        candidate={"attempts": attempts[0], "bad": slow[0]},
        stable={"attempts": attempts[1], "bad": {"errors": errors, **slow[1]}},
        evidence={},
    )


def test_traffic_is_that_of_the_self_test_else_of_the_last_rollout() -> None:
    candidate = over_stable()
    model, environment = candidate.model, production()
    assert traffic_of(model, environment).rate_per_s is None
    rollout = put(started(candidate=candidate), "rolled_back")
    observed(rollout, 1, 1, (100, 100))  # a single tick: what it counts may reach back further
    assert traffic_of(model, environment).source == "unknown"
    observed(rollout, 2, 61, (60, 540), errors=54)
    found = traffic_of(model, environment)
    assert (found.rate_per_s, found.error_frac, found.source) == (10.0, 0.1, f"rollout {rollout.pk}")
    counting(candidate, 42)
    assert (traffic_of(model, environment).rate_per_s, traffic_of(model, environment).error_frac) == (42, 0.1)
    counting(candidate, 42, error_frac=0.01)
    found = traffic_of(model, environment)
    assert (found.rate_per_s, found.error_frac, found.source) == (42, 0.01, "gateways")
    TrafficRecord.objects.update(at=timezone.now() - timedelta(days=2))
    assert traffic_of(model, environment).source == f"rollout {rollout.pk}"


def test_how_slow_stable_is_was_seen_by_the_last_rollout() -> None:
    candidate = over_stable()
    rollout = put(started(candidate=candidate), "rolled_back")
    observed(rollout, 1, 1, (100, 100))
    observed(rollout, 2, 61, (60, 540), slow=({"slow_50ms": 60}, {"slow_50ms": 108, "slow_250ms": 0, "bytes_512": 9}))
    shares = {"slow_250ms": 0.0, "slow_50ms": 0.2}
    assert traffic_of(candidate.model, production()).slow_frac == shares
    counting(candidate, 42)
    found = traffic_of(candidate.model, production())
    assert (found.source, found.slow_frac) == ("gateways", shares)
    assert seen(candidate)["traffic"]["slow_frac"] == shares


def test_how_slow_a_first_release_was_counts_for_the_next() -> None:
    candidate = over_stable()
    rollout = put(started(candidate=candidate), "rolled_back")
    observed(rollout, 1, 1, (100, 0))
    observed(rollout, 2, 61, (60, 0), slow=({"slow_50ms": 15}, {}))
    assert traffic_of(candidate.model, production()).slow_frac == {"slow_50ms": 0.25}


# --- pure parts -------------------------------------------------------------------------------------------------------


def test_parts_of_a_manifest() -> None:
    before = make_manifest("m", make_release().files.get().blob)
    file = {"path": "tokenizer/t.json", "role": "tokenizer", "sha256": "c" * 64, "size_bytes": 1}
    assert changed_parts(before, before) == ()
    assert changed_parts(before, {**before, "envelope": {"host": {}}, "provenance": {"a": 1}}) == ()
    after = {**before, "files": [*before["files"], file], "serving": {}, "runtime": {}}
    assert changed_parts(before, after) == ("tokenizer", "runtime image", "serving config")


@pytest.mark.parametrize(
    ("facts", "needs", "says"),
    [
        ({}, {"a": {"host": {"memory_mib_min": 10**9}}}, ""),  # the node does not tell
        ({"memory_bytes": 2**30}, {"a": {}, "b": {}}, ""),  # nothing is declared
        ({"memory_bytes": 2**30}, {"a": {"host": {"memory_mib_min": 1024}}}, ""),
        ({"memory_bytes": 2**30}, {"a": {"host": {"memory_mib_min": 1025}}, "b": {}}, "a declare 1025 MiB"),
        ({"gpus": None}, {"a": {"accelerator": {"exclusive": True, "count": 2}}}, ""),
        ({"gpus": ["L4"]}, {"a": {"accelerator": {"count": 2}}}, ""),  # shared
        ({"gpus": ["L4"]}, {"a": {"accelerator": {"exclusive": True}}, "b": {"accelerator": {"exclusive": True}}},
         "a, b want 2 GPUs of their own, and it has 1"),
    ],
)  # fmt: skip
def test_a_shortage_is_told_only_where_both_sides_are_known(facts: Any, needs: Any, says: str) -> None:
    assert shortage(facts, needs).startswith(says) and bool(shortage(facts, needs)) == bool(says)
