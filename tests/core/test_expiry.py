"""Which lines of a report's evidence hold where its release will serve: every fact, at its edges, and what nobody knows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from validators.core.expiry import Expired, expired, measured_together, place_of, results_of, uses_gpu
from validators.core.gates.gate import FACTS
from validators.core.policy import parse_policy

NOW = datetime(2026, 11, 1, tzinfo=UTC)
IMAGE = "triton@sha256:" + "a" * 64
TOLD = {
    "machine": "x86_64", "cpu_model": "EPYC", "cpu_count": 16, "system": "Linux 6.1", "gpus": ["NVIDIA L4", "NVIDIA L4"],
    "driver": "550.1", "tensorrt": "TensorRT 10.3.0",
}  # fmt: skip
HERE = place_of("a", TOLD, IMAGE)
POLICY = parse_policy({"golden": {"set": "sha256:" + "1" * 64}}).document
GATES = ("contract", "cold_start", "golden", "load")


def results(age: timedelta = timedelta(days=1), **measured: Any) -> list[dict[str, Any]]:
    return [{"gate": gate, "measured": {**HERE, **measured}, "ended_at": (NOW - age).isoformat()} for gate in GATES]


def lines(found: list[dict[str, Any]] | None = None, **over: Any) -> list[Expired]:
    how: dict[str, Any] = {"judged_by": POLICY, "policy": POLICY, "place": HERE, "on_gpu": True, "now": NOW, **over}
    return expired(results() if found is None else found, **how)


def lost(*given: Any, **over: Any) -> dict[str, tuple[str, ...]]:
    return {line.fact: line.gates for line in lines(*given, **over)}


def test_what_was_measured_on_an_equal_node_by_the_same_policy_holds() -> None:
    assert lines(results(node="another name")) == []
    assert lines([]) == [] == lines([], place=None)


@pytest.mark.parametrize(
    ("fact", "gates"),
    [
        ("image", GATES),
        ("machine", GATES),
        ("gpu", GATES),
        ("driver", GATES),
        ("tensorrt", GATES),
        ("cpu_model", ("cold_start", "golden", "load")),
        ("cpu_count", ("cold_start", "load")),
    ],
)
def test_each_fact_expires_the_gates_that_depend_on_it_and_no_other(fact: str, gates: tuple[str, ...]) -> None:
    assert lost(results(**{fact: "other"})) == {fact: gates}
    assert lost(place={**HERE, fact: "other"}) == {fact: gates}


@pytest.mark.parametrize("fact", [fact for fact in FACTS if fact != "kernel"])
def test_what_nobody_knows_is_never_the_same(fact: str) -> None:
    for measured, place in ((results(**{fact: None}), HERE), (results(), {**HERE, fact: None})):
        assert list(lost(measured, place=place)) == [fact]
    both = lines(results(**{fact: None}), place={**HERE, fact: None})
    assert "measured where nobody could tell it, and nobody can tell it of node a" in both[0].message


def test_a_line_says_what_was_and_what_is() -> None:
    (line,) = lines(results(gpu="NVIDIA H100"))
    said = "GPU of contract, cold_start, golden, load: measured on NVIDIA H100, and node a has NVIDIA L4 + NVIDIA L4"
    assert (line.message, line.measured, line.serves) == (said, "NVIDIA H100", "NVIDIA L4 + NVIDIA L4")
    assert line.as_json()["gates"] == list(GATES)


def test_gates_that_were_measured_in_several_places_have_a_line_each() -> None:
    mixed = [{**one, "measured": {**HERE, "cpu_model": one["gate"]}} for one in results()]
    assert [(line.gates, line.measured) for line in lines(mixed)] == [
        (("cold_start",), "cold_start"), (("golden",), "golden"), (("load",), "load"),
    ]  # fmt: skip


def test_a_release_without_a_gpu_does_not_ask_for_one() -> None:
    other = results(gpu="NVIDIA H100", driver=None, tensorrt="none")
    assert lines(other, on_gpu=False) == []
    assert list(lost(other)) == ["gpu", "driver", "tensorrt"]


def test_the_policy_says_what_must_be_alike() -> None:
    of_kernel = parse_policy({**POLICY, "evidence": {"same": ["kernel"], "max_age_days": None}}).document
    assert lost(results(kernel="Linux 5.10", gpu="NVIDIA H100"), policy=of_kernel) == {"kernel": ("cold_start", "load")}
    assert lines(results(age=timedelta(days=3649)), policy=of_kernel) == []


def test_evidence_ages_at_its_limit_and_not_before() -> None:
    assert lines(results(timedelta(days=30))) == []
    older = lines(results(timedelta(days=30, seconds=1)))
    assert [line.gates for line in older] == [(gate,) for gate in GATES]
    assert older[0].message == "contract was measured 30 days ago, and holds for 30 days"
    unknown = [{**one, "ended_at": None} for one in results()]
    assert "at a time that nobody knows" in lines(unknown)[0].message


def test_only_gates_that_were_judged_by_other_demands_expire() -> None:
    slower = parse_policy({**POLICY, "load": {**POLICY["load"], "slo_ms": 900}}).document
    assert lost(policy=slower) == {"policy": ("load",)}
    assert lines(policy=slower)[0].message == "load was judged by other demands than the policy's of today"
    both = parse_policy({**slower, "contract": {"edges": False}}).document
    assert lines(policy=both)[0].message == "contract, load were judged by other demands than the policy's of today"
    another = {**POLICY, "golden": {**POLICY["golden"], "set": "sha256:" + "2" * 64}}
    assert lost(policy=another) == {"golden_set": ("golden",)}
    both = {**another, "golden": {**another["golden"], "min_accuracy": 0.99}}
    assert lost(policy=both) == {"golden_set": ("golden",), "policy": ("golden",)}
    assert lost(judged_by=None) == {"policy": GATES}
    assert lost(policy={**POLICY, "stop_at_first_failure": False}) == {}


def test_where_nobody_knows_the_place_nothing_holds() -> None:
    assert lost(place=None) == {"place": GATES}


def test_a_place_tells_facts_or_none_or_nothing() -> None:
    assert HERE["gpu"] == "NVIDIA L4 + NVIDIA L4" and HERE["cpu_count"] == "16" and HERE["kernel"] == "Linux 6.1"
    looked = place_of("b", {"gpus": [], "tensorrt": "not available here: no device"}, IMAGE)
    assert (looked["gpu"], looked["driver"], looked["tensorrt"]) == ("none", "none", "none")
    blind = place_of("c", {"gpus": None, "gpus_unknown": "no library"}, IMAGE)
    assert all(blind[fact] is None for fact in FACTS if fact != "image")


def test_a_report_from_before_tells_of_all_its_gates_at_once() -> None:
    gates = [{"gate": "load"}, {"gate": "golden", "measured": {"node": "b"}}]
    body = {"gates": gates, "hardware": {"node": "a", "facts": TOLD}, "runtime": {"image": IMAGE}}
    old, new = results_of({**body, "baseline": {"manifest_digest": "sha256:9"}})
    assert old["measured"] == {**HERE, "baseline": "sha256:9"} and new["measured"] == {"node": "b"}
    assert results_of({}) == []


@pytest.mark.parametrize(
    ("envelope", "kind", "expected"),
    [
        ({}, "cpu", False),
        ({}, "gpu", True),
        ({"accelerator": {"vendor": "none"}}, "cpu", False),
        ({"accelerator": {"vendor": "none"}}, "gpu", True),
        ({"accelerator": {"vendor": "nvidia"}}, "cpu", True),
    ],
)
def test_a_release_uses_a_gpu_where_its_envelope_or_a_group_says_so(envelope: Any, kind: str, expected: bool) -> None:
    manifest = {"envelope": envelope, "serving": {"instance_group": [{"kind": kind, "count": 1}]}}
    assert uses_gpu(manifest) is expected


def test_a_measurement_and_what_watched_it_hold_together_or_not_at_all() -> None:
    watched = ("contract", "load", "capacity", "gpu")
    assert measured_together(watched, watched) == set(watched)
    for one in ("load", "capacity", "gpu"):
        assert measured_together([gate for gate in watched if gate != one], watched) == {"contract"}
    assert measured_together(["contract", "load"], ["contract", "load", "capacity"]) == {"contract", "load"}, (
        "nobody watched"
    )
    assert measured_together(["load"], ["load", "gpu", "resources"]) == set()
