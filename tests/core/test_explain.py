"""What a gate policy is said to demand: the figures of the gates' own planning, in their order, and never more than they certify."""

from __future__ import annotations

from typing import Any

from validators.core import recovery
from validators.core.certify import caught
from validators.core.explain import Demand, explain
from validators.core.policy import parse_policy
from validators.core.proof import sizing

SET = "sha256:" + "1" * 64


def told(items: int = 0, slices: dict[str, int] | None = None, **policy: Any) -> dict[str, Demand]:
    demands = explain(parse_policy(policy), items=items, slices=slices or {})
    return {one.field: one for one in demands}


def test_every_gate_of_the_policy_is_told_in_its_order_and_no_other() -> None:
    policy = parse_policy({"gates": ["load", "contract"], "load": {"slo_ms": 250}})
    gates = [one.gate for one in explain(policy, items=0, slices={})]
    assert list(dict.fromkeys(gates)) == ["load", "contract", "envelope", "evidence"]
    assert {one.gate for one in told().values()} == {"contract", "cold_start", "load", "envelope", "evidence"}


def test_the_load_takes_what_its_own_plan_says() -> None:
    load = {"slo_ms": 250, "slo_quantile": 0.99, "rate_per_s": 40}
    plan = sizing(parse_policy({"load": load}).of("load"))
    found = told(load=load)["load.slo_ms"]
    assert (found.least_s, found.most_s) == (plan.seconds, plan.deadline_s)
    assert found.demands == f"99 % within 250 ms; {plan.sentence}."
    assert "at most 1 % are over, wrongly in no more than 5 % of all runs" in found.certifies.lower()
    slower = {**load, "rate_per_s": 5}
    own = parse_policy({"load": slower}).of("load")
    lasts = round(float(recovery.surge(own, seed=own["seed"])[-1]), 1)
    burst = told(load=slower)["load.recovery_s"]
    assert (burst.least_s, burst.most_s) == (lasts, lasts) and lasts == 31.1


def test_what_is_asked_of_tokens_is_told() -> None:
    load = {"slo_ms": 5000, "slo_quantile": 0.9}
    found = told(load={**load, "ttft_slo_ms": 120})["load.ttft_slo_ms"]
    assert found.demands == "90 % have the first token within 120 ms."
    between = told(load={**load, "itl_slo_ms": 50})["load.itl_slo_ms"]
    assert between.demands == "90 % of those with two responses have a mean of 50 ms from one to the next."
    assert not {"load.ttft_slo_ms", "load.itl_slo_ms"} & set(told(load=load))


def test_a_load_that_cannot_pass_certifies_nothing() -> None:
    found = told(load={"slo_ms": 250, "rate_per_s": 1, "duration_s": 10})["load.slo_ms"]
    assert found.certifies.startswith("Nothing: it can fail, and cannot pass")
    assert found.least_s is not None and found.least_s.is_integer()
    just_enough = told(load={"slo_ms": 250, "rate_per_s": 1, "duration_s": found.least_s})["load.slo_ms"]
    assert just_enough.certifies.startswith("At most 1 %")


def test_without_an_objective_only_errors_are_counted() -> None:
    found = told()
    assert (found["load.max_error_frac"].least_s, found["load.max_error_frac"].most_s) == (8, 8)
    assert found["load.slo_ms"].certifies == "Nothing about latency." and "load.recovery_s" not in found


def test_a_golden_set_certifies_what_its_size_does() -> None:
    golden = {"set": SET, "min_accuracy": 0.9}
    own = parse_policy({"golden": golden}).of("golden")
    every = told(400, {"all": 400}, golden=golden)
    found = every["golden.set"]
    assert "golden.min_slice_items" not in every
    losses = caught(400, own)
    assert losses.against_stable is not None and losses.without_stable is not None
    assert f"loses {losses.against_stable * 100:.3g} % of stable's rows fails in nine runs of ten" in found.certifies
    assert f"one that loses {losses.without_stable * 100:.3g} %" in found.certifies
    assert (
        "right answers at least 90 %; answers as stable's at least 95 %; accuracy drops at most by 2 %" in found.demands
    )
    assert told(0, golden=golden)["golden.set"].certifies.startswith("Nothing: so few rows")


def test_the_smallest_slices_that_are_judged_are_told_and_how_many_are_not() -> None:
    slices = {f"s{size}": size for size in (5, 19, 20, 30, 40, 50, 60, 70)}
    demands = explain(parse_policy({"golden": {"set": SET}}), items=294, slices=slices)
    of_slices = [one for one in demands if one.field == "golden.max_slice_drop"]
    assert len(of_slices) == 5 and "20 rows of slice s20" in of_slices[0].demands
    own = parse_policy({"golden": {"set": SET}}).of("golden")
    least = caught(20, own, slices=6).against_stable
    assert least is not None and f"{least * 100:.3g} %" in of_slices[0].certifies
    (few,) = (one for one in demands if one.field == "golden.min_slice_items")
    assert few.demands == "2 slices have fewer than 20 rows."


def test_what_is_tried_once_says_so() -> None:
    found = told(contract={"edges": False}, cold_start={"max_s": 12})
    assert "contract.edges" not in found and "contract.edges" in told()
    assert found["cold_start.max_s"].most_s == 12 and "One start" in found["cold_start.max_s"].certifies


def test_what_each_environment_demands_of_evidence_is_told() -> None:
    environments = {"beta": {"advisory": ["load"], "max_age_days": 90}, "production": {"max_age_days": 7}}
    found = told(environments=environments)
    assert found["environments.beta"].demands == "load only advise; evidence holds for 90 days."
    assert found["environments.beta"].certifies == "Nothing of load."
    assert found["environments.production"].demands == "Every gate holds a release up; evidence holds for 7 days."
    assert "runtime image, architecture, GPU" in found["evidence.same"].demands
    assert "for 30 days" in found["evidence.same"].certifies
    free = told(evidence={"same": [], "max_age_days": None})["evidence.same"]
    assert free.demands == "Nothing of where it serves." and "for ever" in free.certifies


def test_the_gates_on_demand_say_how_long_they_may_take() -> None:
    found = told(gates=["resources", "capacity"], resources={"max_cpu_ms": 5}, load={"rate_per_s": 30})
    leaks, capacity = found["resources.max_growth_bytes"], found["capacity.budget_s"]
    assert (leaks.least_s, leaks.most_s) == (0, 90) and "at most 4096 bytes" in leaks.demands
    assert "over 2000 requests or more" in leaks.demands and "in no more than 5 % of all runs" in leaks.certifies
    assert found["resources.max_cpu_ms"].demands == "A request takes at most 5 ms of CPU time."
    assert (capacity.least_s, capacity.most_s) == (None, 600) and "up to 1000/s" in capacity.certifies
    assert "resources.max_cpu_ms" not in told(gates=["resources"])


def test_the_gpu_gate_says_what_has_to_be_known() -> None:
    found = told(gates=["load", "gpu"], gpu={"must_know": ["ecc", "alone"], "max_power_capped_frac": 0.25})
    known = "Known of each GPU under load and capacity: no uncorrected error of its memory; nobody else computed on it."
    assert found["gpu.must_know"].demands == known
    assert "at most 25 %" in found["gpu.max_power_capped_frac"].demands
