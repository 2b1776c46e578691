"""Predicates of attestations: every number with its threshold and interval, and nothing claimed that nobody measured."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.attestations import gate_evidence, provenance, subject_of
from validators.core.attested import predicate_facts

IMAGE = "triton@sha256:" + "a" * 64
MANIFEST: dict[str, Any] = {
    "schema": "sluicegate/manifest/v1",
    "model": "m",
    "files": [{"path": "artifact/model.onnx", "role": "artifact", "sha256": "b" * 64, "size_bytes": 3}],
    "runtime": {"image": IMAGE},
    "provenance": {},
}


def body(**gates: dict[str, Any]) -> dict[str, Any]:
    """A report's body with these gates' evidence."""
    policy = {
        "golden": {"min_accuracy": 0.9, "min_agreement": 0.95, "max_accuracy_drop": 0.02, "confidence": 0.9},
        "load": {"max_error_frac": 0.001, "slo_ms": 50, "slo_quantile": 0.99},
        "cold_start": {"max_s": 60},
    }
    told = [{"gate": gate, "verdict": "passed", "reason": "fine", "evidence": found} for gate, found in gates.items()]
    return {
        "gates": told, "policy": policy, "verdict": "passed", "reason": "fine", "manifest_digest": "sha256:" + "1" * 64,
        "policy_digest": "sha256:" + "2" * 64, "golden_set": None, "runtime": {"image": IMAGE}, "sealed_at": "2026-03-01T12:00:00Z",
    }  # fmt: skip


def metrics(**gates: dict[str, Any]) -> dict[str, dict[str, Any]]:
    said = gate_evidence(report_digest="sha256:" + "3" * 64, **predicate_facts(body(**gates)))
    return {metric["name"]: metric for gate in said["gates"] for metric in gate["metrics"]}


def test_every_number_has_its_threshold_and_interval() -> None:
    found = metrics(
        golden={
            "accuracy": {"value": 0.95, "n": 200, "low": 0.92, "high": 0.97},
            "agreement": {"value": 0.99, "n": 200, "low": 0.97, "high": 1.0},
            "paired": {"n": 200, "drop": -0.01},
            "baseline": "r1",
        },
        load={"requests": 1000, "errors": 1, "over": 4, "phi": 1.5, "latency_ms": {"p50": 3.0, "p99": 41.0}},
        cold_start={"total_s": 12.5, "first_ms": 30.0, "steady_ms": 10.0},
    )
    assert found["accuracy"] == {
        "name": "accuracy", "unit": "frac", "better": "higher", "value": 0.95, "threshold": 0.9, "n": 200, "low": 0.92,
        "high": 0.97, "confidence": 0.9,
    }  # fmt: skip
    assert found["agreement with r1"]["threshold"] == 0.95
    assert (found["accuracy drop"]["value"], found["accuracy drop"]["threshold"]) == (-0.01, 0.02)
    assert (found["errors"]["value"], found["errors"]["threshold"]) == (0.001, 0.001)
    assert found["over the objective"]["threshold"] == 0.01 and found["over the objective"]["low"] is not None
    assert (found["latency p99"]["threshold"], found["latency p50"]["threshold"]) == (50, None)
    assert found["total"]["threshold"] == 60 and found["steady"]["confidence"] is None


def test_an_interval_has_the_confidence_that_it_was_computed_with() -> None:
    """The golden gate's is its policy's; the shares of a load run are always at 95 %."""
    found = metrics(
        golden={
            "accuracy": {"value": 0.95, "n": 200, "low": 0.92, "high": 0.97},
            "agreement": {"value": 0.99, "n": 200, "low": 0.97, "high": 1.0},
            "batch_invariance": {"flipped": 1, "asked_alone": 64, "low": 0.0, "high": 0.1},
            "baseline": "r1",
        },
        load={"requests": 1000, "errors": 1, "over": 4, "latency_ms": {"p50": 3.0}},
    )
    told = {name: metric["confidence"] for name, metric in found.items()}
    assert told == {
        "accuracy": 0.9, "batch flips": 0.9, "agreement with r1": 0.9, "errors": 0.95, "over the objective": 0.95,
        "latency p50": None,
    }  # fmt: skip
    assert found["agreement with r1"] == {
        "name": "agreement with r1", "unit": "frac", "better": "higher", "value": 0.99, "threshold": 0.95, "n": 200,
        "low": 0.97, "high": 1.0, "confidence": 0.9,
    }  # fmt: skip
    cold = metrics(cold_start={"total_s": 12.5, "first_ms": 30.0, "steady_ms": 10.0})
    higher = {name for name, metric in (found | cold).items() if metric["better"] == "higher"}
    assert higher == {"accuracy", "agreement with r1"}, "of everything else less is better"


@pytest.mark.parametrize(
    ("stated", "thresholds"),
    [
        ({"slo_ms": 50, "slo_quantile": 0.95}, {"over the objective": 0.05, "latency p95": 50, "latency p99": None}),
        (
            {"slo_ms": None, "slo_quantile": 0.99},
            {"over the objective": None, "latency p95": None, "latency p99": None},
        ),
        ({"slo_ms": 50, "slo_quantile": 0.9}, {"over the objective": 0.1, "latency p95": None, "latency p99": None}),
        ({"slo_ms": 50}, {"over the objective": None, "latency p95": None, "latency p99": None}),
    ],
)
def test_the_objective_is_the_threshold_of_its_own_quantile(stated: dict[str, Any], thresholds: dict[str, Any]) -> None:
    facts = body(load={"requests": 1000, "errors": 1, "over": 4, "latency_ms": {"p95": 9.0, "p99": 41.0}})
    facts["policy"]["load"] = {"max_error_frac": 0.001, **stated}
    (gate,) = gate_evidence(report_digest="", **predicate_facts(facts))["gates"]
    told = {metric["name"]: metric["threshold"] for metric in gate["metrics"]}
    assert told == {"errors": 0.001, **thresholds}


def test_a_gate_without_a_policy_or_evidence_is_attested_with_its_verdict_alone() -> None:
    facts = body(contract={"batch_sizes": [1]}, golden={"accuracy": {"value": 0.9, "n": 9, "low": 0.5, "high": 1.0}})
    facts["policy"] = {}
    facts["gates"][0] |= {"started_at": "2026-03-01T11:00:00Z", "ended_at": "2026-03-01T11:00:09Z"}
    contract, golden = predicate_facts(facts)["results"]
    assert (contract.verdict, contract.reason, contract.metrics) == ("passed", "fine", ())
    assert (contract.started_at, contract.ended_at) == ("2026-03-01T11:00:00Z", "2026-03-01T11:00:09Z")
    assert [(one.threshold, one.confidence) for one in golden.metrics] == [(None, 0.95)]
    facts["gates"][1]["evidence"] = None
    assert predicate_facts(facts)["results"][1].metrics == ()


def test_what_was_not_measured_is_not_there() -> None:
    assert metrics(golden={"accuracy": {"value": None, "n": 0, "low": 0.0, "high": 1.0}}, contract={}) == {}


def test_verdicts_are_sorted_as_a_test_result_knows_them() -> None:
    facts = body(contract={}, golden={}, load={}, cold_start={})
    for gate, verdict in zip(facts["gates"], ("passed", "failed", "undecided", "errored"), strict=True):
        gate["verdict"] = verdict
    facts["verdict"] = "failed"
    said = gate_evidence(report_digest="sha256:" + "3" * 64, **predicate_facts(facts))["testResult"]
    assert said["result"] == "FAILED"
    assert (said["passedTests"], said["failedTests"]) == (["contract"], ["golden"])
    assert said["warnedTests"] == ["load", "cold_start"]
    facts["verdict"] = "undecided"
    assert gate_evidence(report_digest="", **predicate_facts(facts))["testResult"]["result"] == "WARNED"


def test_provenance_names_what_went_in_and_who_only_said_so() -> None:
    stated = {
        "git_commit": "c" * 40, "git_repository": "https://example.com/m.git", "git_branch": "main",
        "ci_run_url": "https://ci.example.com/7", "dataset": "reviews", "dataset_digest": "sha256:" + "d" * 64,
    }  # fmt: skip
    said = provenance(
        {**MANIFEST, "provenance": stated},
        release_name="r1",
        pushed_by="robot",
        drafted_at="a",
        sealed_at="b",
        version="1",
    )
    found = {one["name"]: one for one in said["buildDefinition"]["resolvedDependencies"]}
    assert found["source"] == {
        "name": "source", "annotations": {"commit": "c" * 40}, "uri": "git+https://example.com/m.git@main",
        "digest": {"gitCommit": "c" * 40},
    }  # fmt: skip
    assert found["reviews"]["digest"] == {"sha256": "d" * 64} and found["runtime"]["digest"] == {"sha256": "a" * 64}
    assert said["runDetails"]["metadata"]["invocationId"] == "https://ci.example.com/7"
    assert said["buildDefinition"]["externalParameters"]["stated"] == stated
    bare = provenance(MANIFEST, release_name="r1", pushed_by=None, drafted_at="a", sealed_at="b", version="1")
    assert [one["name"] for one in bare["buildDefinition"]["resolvedDependencies"]] == [
        "artifact/model.onnx",
        "runtime",
    ]


def test_the_subject_is_the_manifest_by_its_name_and_bare_digest() -> None:
    assert subject_of("m", "r3", "sha256:" + "a" * 64) == [{"name": "m/r3", "digest": {"sha256": "a" * 64}}]


def dependencies(**stated: str) -> dict[str, Any]:
    manifest = {**MANIFEST, "provenance": stated or None}
    said = provenance(manifest, release_name="r1", pushed_by=None, drafted_at="a", sealed_at="b", version="1")
    return {one["name"]: one for one in said["buildDefinition"]["resolvedDependencies"]}


@pytest.mark.parametrize(
    ("length", "is_whole"), [(7, False), (39, False), (40, True), (41, False), (63, False), (64, True)]
)
def test_only_a_whole_commit_is_a_digest(length: int, is_whole: bool) -> None:
    source = dependencies(git_commit="c" * length)["source"]
    assert (
        ("digest" in source) == is_whole and source["annotations"] == {"commit": "c" * length} and "uri" not in source
    )


def test_a_source_without_a_branch_is_named_by_its_commit() -> None:
    source = dependencies(git_commit="c" * 7, git_repository="https://example.com/m")["source"]
    assert source["uri"] == "git+https://example.com/m@ccccccc"
    assert set(dependencies(git_repository="https://example.com/m")) == {"artifact/model.onnx", "runtime"}


def test_data_is_named_by_what_is_known_of_it() -> None:
    assert dependencies(dataset="reviews")["reviews"] == {"name": "reviews"}
    assert dependencies(dataset_digest="sha256:" + "d" * 64)["dataset"]["digest"] == {"sha256": "d" * 64}
    assert set(dependencies()) == {"artifact/model.onnx", "runtime"}


def test_evidence_names_what_was_measured_on_what() -> None:
    facts = predicate_facts({**body(contract={}), "golden_set": "sha256:" + "9" * 64})
    said = gate_evidence(report_digest="sha256:" + "3" * 64, **facts)
    assert said["testResult"]["configuration"] == [
        {"name": "policy", "digest": {"sha256": "2" * 64}},
        {"name": "runtime", "uri": "oci://triton", "digest": {"sha256": "a" * 64}},
        {"name": "golden set", "digest": {"sha256": "9" * 64}},
    ]
    assert said["testResult"]["result"] == "PASSED" and said["testResult"]["url"].endswith("sha256:" + "3" * 64)
