"""The capacity gate's judgement: what is proven, against what an envelope declares for the hardware that was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledger.core.errors import Invalid
from tests.core.test_capacity_search import run
from validators.core.capacity import Measured, hardware_name, judge_capacity, plan_of
from validators.core.capacity_search import Ended, Purpose, Run, SearchPlan
from validators.core.envelope import judged as with_envelope
from validators.core.load import LoadSummary
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict

PLAN = SearchPlan(quantile=0.99, confidence=0.9, first_per_s=8, most_per_s=1000)
HELD = run(50, 250, 0.002, Purpose.CONFIRM)
HELD = replace(HELD, step=replace(HELD.step, rate_per_s=50.37))
STAGES = {"total_ms": 12.0, "queue_ms": 2.0, "mean_batch": 1.5}
MISSED = run(60, 40, 0.5, Purpose.NEAR)


def entry(value: float, **more: Any) -> dict[str, Any]:
    return {"hardware": "NVIDIA-L4", "throughput": {"value": value, "unit": "requests_per_s"}, **more}


def summary(one: Run) -> LoadSummary:
    latency = {"p50": 10.0, "p90": 20.0, "p95": 30.0, "p99": 40.0}
    return LoadSummary(one.requests, 0, one.over, 50.0, 49.9, latency, 0.1, 0.2, (), (), (), goodput_per_s=49.8)


def judged(claim: Run | None, declared_per_s: float | None, *runs: Run) -> Judgement:
    """The gate's verdict with its envelope's row, without tolerance."""
    entries = [] if declared_per_s is None else [entry(declared_per_s)]
    measured = [Measured(one, summary(one), STAGES if one is HELD else None) for one in runs]
    ended = Ended(claim, "" if claim else "600 s were not enough")
    found = judge_capacity(ended, measured, PLAN, slo_ms=60, hardware="NVIDIA L4")
    policy = {"on_breach": "fail", "tolerance_frac": 0.0}
    return with_envelope(found, "capacity", {"performance": entries}, policy, hardware="NVIDIA L4", uses_gpu=True)


def test_a_proven_rate_passes_where_the_envelope_declares_no_more() -> None:
    found = judged(HELD, 50.3, MISSED, HELD)
    assert found.verdict is Verdict.PASSED
    assert found.reason == (
        "Holds 50.3 requests/s: of 12500 in 250 s, 25 were over 60 ms, and at most 1.00% may be; "
        "proven at confidence 0.9."
    )
    assert found.evidence["capacity_per_s"] == 50.3  # never rounded up
    assert found.evidence["points"][1] == {
        "rate_per_s": 50.37, "purpose": "confirm", "seconds": 250, "requests": 12500, "over": 25, "errors": 0,
        "achieved_per_s": 49.9, "goodput_per_s": 49.8, "latency_ms": {"p50": 10.0, "p95": 30.0, "p99": 40.0}, "latency_low_ms": {},
        "in_flight": 0.0,
        "lag_p99_ms": 0.1, "dispersion": 3.0, "stages": STAGES, "found": "proven",
    }  # fmt: skip
    assert (found.evidence["points"][0]["found"], found.evidence["points"][0]["stages"]) == ("refuted", None)
    assert judged(HELD, None, HELD).verdict is Verdict.PASSED


def test_an_envelope_that_declares_more_fails_only_where_that_is_refuted() -> None:
    found = judged(HELD, 60, MISSED, HELD)
    assert found.verdict is Verdict.FAILED
    assert (
        "declares 60 requests/s (throughput); 50.3 requests/s are proven, and the objective was missed at 60 requests/s"
        in found.reason
    )
    assert judged(HELD, 59.9, MISSED, HELD).verdict is Verdict.UNDECIDED  # 60/s says nothing of 59.9/s
    assert judged(None, 60, MISSED).verdict is Verdict.FAILED
    assert judged(None, 59.9, MISSED).verdict is Verdict.UNDECIDED
    assert judged(None, None).reason == "No capacity was proven: 600 s were not enough."


def test_what_is_declared_counts_for_its_own_hardware_and_in_requests() -> None:
    of_items = entry(900, throughput={"value": 900, "unit": "items_per_s"})
    envelope = {"performance": [{"hardware": "NVIDIA-L4"}, entry(40), entry(70, hardware="NVIDIA-H100"), of_items]}
    searched = judge_capacity(Ended(HELD, ""), [Measured(HELD, summary(HELD))], PLAN, slo_ms=60, hardware="x")
    for hardware, verdicts in (
        ("NVIDIA L4", {"[1]": "passed", "[2]": "unknown", "[3]": "unknown"}),
        ("NVIDIA H100", {"[1]": "unknown", "[2]": "unknown", "[3]": "unknown"}),
        ("", {"[1]": "unknown", "[2]": "unknown", "[3]": "unknown"}),
    ):
        policy = {"on_breach": "fail", "tolerance_frac": 0.0}
        found = with_envelope(searched, "capacity", envelope, policy, hardware=hardware, uses_gpu=True)
        rows = {row["field"]: row["verdict"] for row in found.evidence["envelope"] if "throughput" in row["field"]}
        assert rows == {f"performance{at}.throughput": verdict for at, verdict in verdicts.items()}, hardware


def test_a_node_computes_on_its_gpu_or_else_on_its_processor() -> None:
    assert hardware_name({"gpus": ["NVIDIA L4"], "cpu_model": "Xeon"}) == "NVIDIA L4"
    assert hardware_name({"gpus": None, "cpu_model": "Xeon"}) == "Xeon"
    assert hardware_name({"gpus": ["NVIDIA L4"], "cpu_model": "Xeon"}, on_gpu=False) == "Xeon"
    assert hardware_name({}) == ""


def test_only_a_policy_that_names_the_gate_has_its_section() -> None:
    assert "capacity" not in parse_policy({}).document
    with pytest.raises(Invalid, match="Add capacity to `gates`"):
        parse_policy({"capacity": {"budget_s": 300}})
    asked = parse_policy({"gates": ["capacity"], "load": {"rate_per_s": 30}})
    assert asked.of("capacity") == {
        "first_per_s": 30, "most_per_s": 1000, "budget_s": 600, "confidence": 0.9, "undecided": "block",
    }  # fmt: skip
    assert parse_policy(asked.document) == asked
    assert "capacity" not in parse_policy({}).gates


def test_a_search_is_no_longer_than_a_gate_may_be() -> None:
    with pytest.raises(Invalid, match="gate_timeout_s"):
        parse_policy({"gates": ["capacity"], "capacity": {"budget_s": 901}})
    assert parse_policy({"gates": ["capacity"], "capacity": {"budget_s": 900}})


def test_a_search_is_under_the_objective_of_the_load_section() -> None:
    asked = parse_policy({"gates": ["capacity"], "load": {"slo_ms": 60, "slo_quantile": 0.95, "rate_per_s": 2000}})
    plan = plan_of(asked.of("capacity"), asked.of("load"))
    assert (plan.quantile, plan.confidence, plan.first_per_s, plan.most_per_s) == (0.95, 0.9, 1000, 1000)
