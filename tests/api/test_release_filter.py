"""Releases by what they declare and what was measured of them, with types: what is compared is a number, a word or a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from registry.core.release_filter import FIELDS, Condition, Operator, read_condition
from registry.core.schema import Problem
from registry.models import Release, ServedModel
from tests.support.worlds.factories import make_environment, make_model, make_release, make_user
from validators.actions import begin_gate_run, finish_gate_run, record_judgement, request_gate_run
from validators.core.gate_diff import METRICS, metrics_of
from validators.core.verdict import Judgement, Verdict
from validators.execution.run import ACTOR

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]

GOLDEN = {"accuracy": {"value": 0.91, "low": 0.9, "high": 0.92, "n": 800}}


def gated(release: Release, verdict: Verdict, evidence: dict[str, Any]) -> None:
    """A finished gate run of it, whose every gate says so."""
    gate_run, _ = request_gate_run(actor=ACTOR, release=release)
    gate_run = begin_gate_run(actor=ACTOR, gate_run=gate_run)
    for one in gate_run.results.all():
        found = evidence if one.gate == "cold_start" else {}
        record_judgement(actor=ACTOR, gate_result=one, judgement=Judgement(verdict, "so it is", found))
    finish_gate_run(actor=ACTOR, gate_run=gate_run, facts={})


@pytest.fixture
def model() -> ServedModel:
    make_environment("staging", is_routed=False)
    model = make_model("sentiment", gate_policy={"gates": ["contract", "cold_start"]})
    small = {"envelope": {"accelerator": {"memory_mib_min": 8000, "vendor": "nvidia"}, "limits": {"streaming": True}}}
    large = {"envelope": {"accelerator": {"memory_mib_min": 24000}}}
    at = datetime(2026, 11, 1, tzinfo=UTC)
    first = make_release(model, spec=small, sealed_at=at)
    second = make_release(model, spec=large)
    make_release(model, spec={})
    gated(first, Verdict.FAILED, {"total_s": 9.5})
    gated(first, Verdict.PASSED, {"total_s": 2.5})  # the newest counts
    gated(second, Verdict.FAILED, {"total_s": 7})
    return model


def names(client: Any, *where: str) -> Any:
    answer = client.get("/api/v1/models/sentiment/releases", {"where": list(where)})
    assert answer.status_code == 200, answer.json()
    return [found["name"] for found in answer.json()["results"]]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ([], ["r3", "r2", "r1"]),
        (["envelope.accelerator.memory_mib_min<24000"], ["r1"]),
        (["envelope.accelerator.memory_mib_min >= 8000"], ["r2", "r1"]),
        (["envelope.accelerator.memory_mib_min=24000"], ["r2"]),
        (["envelope.accelerator.memory_mib_min!=24000"], ["r1"]),
        (["envelope.accelerator.vendor=nvidia"], ["r1"]),
        (["envelope.limits.streaming=true"], ["r1"]),
        (["metric.cold_start.total<=5"], ["r1"]),
        (["metric.cold_start.total>9"], []),
        (["metric.cold_start.total!=2.5"], ["r2"]),
        (["metric.load.latency_p95<=50"], []),
        (["verdict=passed"], ["r1"]),
        (["verdict!=passed"], ["r2"]),
        (["sealed_at<2026-11-02"], ["r1"]),
        (["state=sealed", "verdict=failed"], ["r2"]),
    ],
)
def test_releases_are_found_by_what_holds_of_them(
    api: Api, model: ServedModel, where: list[str], found: list[str]
) -> None:
    assert names(api(make_user(team="search")), *where) == found


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("accuracy", "is no condition"),
        ("metric.golden.acuracy>0.9", "Did you mean metric.golden.accuracy"),
        ("envelope.accelerator.sku_allow=H100", "is no field"),
        ("envelope.accelerator.memory_mib_min<24GiB", "is a number"),
        ("envelope.accelerator.memory_mib_min<nan", "is a number"),
        ("verdict>passed", "has no order"),
        ("envelope.limits.streaming=yes", "true or false"),
        ("sealed_at>yesterday", "ISO 8601"),
        ("spec__model=1", "is no field"),
        ("x" * 400, "is no condition"),
        ("state=\0", "is none"),
    ],
)
def test_what_is_no_condition_is_told_with_what_is_one(api: Api, model: ServedModel, where: str, says: str) -> None:
    answer = api(make_user(team="search")).get("/api/v1/models/sentiment/releases", {"where": where})
    assert answer.status_code == 422 and says in str(answer.json()["errors"]), answer.json()


def test_too_many_conditions_are_refused(api: Api, model: ServedModel) -> None:
    answer = api(make_user(team="search")).get("/api/v1/models/sentiment/releases", {"where": ["state=sealed"] * 21})
    assert answer.status_code == 422 and "too many" in answer.json()["detail"]


@pytest.mark.parametrize("operator", list(Operator))
def test_every_operator_is_read_with_and_without_spaces(operator: Operator) -> None:
    name = "envelope.host.cpu_cores_min"
    assert read_condition(f"{name}{operator}2.5") == read_condition(f" {name} {operator} 2.5 ")
    assert read_condition(f"{name}{operator}2.5") == Condition(name, operator, 2.5)


def test_every_single_value_of_the_envelope_can_be_named() -> None:
    assert {"envelope.accelerator.mig.allowed", "envelope.lifecycle.replicas.max", "envelope.host.os"} <= FIELDS.keys()
    assert isinstance(read_condition("envelope.performance=1"), Problem)


def test_every_metric_that_gates_yield_is_listed() -> None:
    evidence = {
        "golden": {**GOLDEN, "batch_invariance": {"asked_alone": 10, "flipped": 1, "low": 0.0, "high": 0.4}},
        "load": {"requests": 10, "errors": 1, "over": 1, "latency_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0}},
        "cold_start": {"total_s": 1.0, "first_ms": 2.0, "steady_ms": 3.0},
        "resources": {"requests": 10, "peaks": {"memory_bytes": 1 << 20}, "cpu_ms_per_request": 1.5},
        "capacity": {"capacity_per_s": 50.3, "slo_ms": 60.0, "slo_quantile": 0.99},
    }
    found = {(one.gate, one.name) for gate, one_evidence in evidence.items() for one in metrics_of(gate, one_evidence)}
    assert found == set(METRICS)
