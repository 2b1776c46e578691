"""The capacity plan by hand, what it rests on, and the measured entry of an envelope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.core.envelope import ENVELOPE
from validators.core.capacity_plan import Basis, Forecast, basis_of, plan_for
from validators.core.measured_envelope import measured_entry, measured_host, with_measured

BASIS = Basis(50, "capacity", "NVIDIA L4", 60, 0.99, 0.9, "sha256:ab", cold_start_s=30)
POINT = {
    "rate_per_s": 50.37, "seconds": 250, "requests": 12500, "over": 25, "errors": 5, "found": "proven",
    "latency_ms": {"p50": 10.0, "p95": 30.0, "p99": 40.0},
}  # fmt: skip
CAPACITY: dict[str, Any] = {
    "capacity_per_s": 50.3, "hardware": "NVIDIA L4", "slo_ms": 60, "slo_quantile": 0.99, "confidence": 0.9,
    "points": [{**POINT, "found": "open"}, {**POINT, "rate_per_s": 40.0}, POINT], "longest_frac": 0.125,
}  # fmt: skip
COLD = {"total_s": 3.5, "timings": {"fetch_s": 1.0, "load_s": 2.0, "warmup_s": 0.5}}
LOAD = {"slo_ms": 80, "slo_quantile": 0.95, "achieved_per_s": 19.9, "slo_test": {"confidence": 0.95}}


def report(**evidence: Any) -> dict[str, Any]:
    return {"gates": [{"gate": name, "verdict": "passed", "evidence": one} for name, one in evidence.items()]}


def test_a_plan_by_hand() -> None:
    forecast = Forecast(
        200,
        growth_frac=0.2,
        burst_factor=1.5,
        retry_frac=0.1,
        ramp_frac_per_min=0.2,
        spare=2,
        surge_frac=0.25,
        mean_per_s=80,
    )
    plan = plan_for(forecast, BASIS, {"NVIDIA L4": 0.7})
    assert plan.load_per_s == 435.6  # 200 × 1.2 × 1.5 × 1.1, and a tenth more in the 30 s that a replica takes
    assert (plan.serving, plan.replicas, plan.in_rollout) == (9, 11, 14)  # 8.7 and 2.75 are whole replicas
    assert (plan.used_frac, plan.used_frac_after_loss) == (0.792, 0.968)
    assert plan.cost_per_hour == 7.7
    assert plan.cost_per_100k == pytest.approx(7.7 / 288_000 * 100_000, abs=1e-6)
    assert plan.unknown == ()


def test_a_load_that_fits_exactly_takes_no_replica_more() -> None:
    plan = plan_for(Forecast(150), BASIS, {})
    assert (plan.serving, plan.replicas, plan.in_rollout, plan.used_frac_after_loss) == (3, 4, 8, 1.0)
    assert plan_for(Forecast(150.1), BASIS, {}).serving == 4
    assert plan_for(Forecast(0.01, spare=0), BASIS, {}).replicas == 1


def test_what_was_not_measured_or_not_given_is_unknown() -> None:
    nothing = plan_for(Forecast(100), None, {})
    assert (nothing.replicas, nothing.load_per_s) == (None, None)
    assert nothing.unknown == ("No report of this release proves a rate: run its gates with capacity among them.",)
    never_started = replace(BASIS, cold_start_s=None)
    assert plan_for(Forecast(100), never_started, {}).replicas == 3
    assert plan_for(Forecast(100, ramp_frac_per_min=0.1), never_started, {}).replicas is None
    other = plan_for(Forecast(100, mean_per_s=10), BASIS, {"NVIDIA H100": 3})
    assert (other.cost_per_hour, other.cost_per_100k) == (None, None)
    assert other.unknown == ("The cost: no price was given for NVIDIA L4.",)
    assert plan_for(Forecast(100), BASIS, {"NVIDIA L4": 0}).unknown == (
        "The cost of a request: the mean rate was not given.",
    )


def test_a_plan_rests_on_the_proven_capacity_or_else_on_the_rate_that_the_load_gate_proved() -> None:
    whole = basis_of(report(load=LOAD, capacity=CAPACITY, cold_start=COLD), "sha256:ab", "Xeon")
    assert whole == Basis(50.3, "capacity", "NVIDIA L4", 60, 0.99, 0.9, "sha256:ab", 3.5)
    unproven = {**CAPACITY, "capacity_per_s": None}
    of_load = basis_of(report(load=LOAD, capacity=unproven), "sha256:ab", "Xeon")
    assert of_load == Basis(19.9, "load", "Xeon", 80, 0.95, 0.95, "sha256:ab")
    assert basis_of({"gates": [{"gate": "load", "verdict": "undecided", "evidence": LOAD}]}, "x", "") is None
    assert basis_of(report(load={**LOAD, "slo_test": None}), "x", "") is None  # it held no objective
    assert basis_of({}, "x", "") is None


def test_a_measured_entry_is_one_that_an_envelope_may_have() -> None:
    digest = "sha256:" + "0" * 64
    entry = measured_entry(report(capacity=CAPACITY, cold_start=COLD), digest)
    assert entry is not None
    assert entry["workload"] == "the gates' examples, 12.5% as long as declared; 99.00% within 60 ms"
    assert (entry["source"], entry["throughput"]) == ("measured", {"value": 50.3, "unit": "requests_per_s"})
    assert 0.0004 < entry["error_max_frac"] < 0.001 and (entry["n"], entry["duration_s"]) == (12500, 250)
    assert entry["load_shape"] == {"mode": "open", "rate_per_s": 50.37}
    assert entry["cold_start_s"] == {"load": 3.5, "warmup": 1.2}, "the next start takes another time"
    problems: list[Any] = []
    assert ENVELOPE.read({"performance": [entry]}, "", problems) == {"performance": [entry]}
    assert problems == []


@pytest.mark.parametrize("lacks", [{"capacity_per_s": None}, {"hardware": ""}, {"points": []}])
def test_nothing_is_written_where_nothing_was_proven(lacks: dict[str, Any]) -> None:
    assert measured_entry(report(capacity={**CAPACITY, **lacks}), "x") is None


def test_a_measurement_takes_the_place_of_what_was_said_of_its_hardware() -> None:
    declared = {"hardware": "nvidia-l4", "throughput": {"value": 99, "unit": "requests_per_s"}}
    bare, tokens = (
        {"hardware": "NVIDIA L4"},
        {"hardware": "NVIDIA L4", "throughput": {"value": 9, "unit": "tokens_per_s"}},
    )
    other, entry = {"hardware": "NVIDIA H100"}, {"hardware": "NVIDIA L4", "source": "measured"}
    assert with_measured([declared, bare, tokens, other], entry) == [tokens, other, entry]


def test_what_a_server_held_is_rounded_up_to_what_an_envelope_may_declare() -> None:
    peaks = {"memory_bytes": 300 * 2**20 + 1, "shared_bytes": 64 * 2**20, "open_files": 12}
    assert measured_host(report(resources={"peaks": peaks})) == {"memory_mib_min": 301, "shm_mib_min": 64}
    assert measured_host(report(resources={"peaks": {"memory_bytes": None, "shared_bytes": 0}})) is None
    assert measured_host(report(load=LOAD)) is None
