"""Gate metrics of two reports: better and worse only where intervals part."""

from __future__ import annotations

from typing import Any

import pytest

from validators.core.compare import share_of
from validators.core.gate_diff import compare_reports


def golden(right: int, n: int = 1000, golden_set: str = "sha256:a", **more: Any) -> dict[str, Any]:
    share = share_of(right, n)
    shown = {"value": right / n, "low": share.low, "high": share.high, "n": n, "count": right}
    return gate("golden", accuracy=shown, golden_set=golden_set, output="p", batch_invariance=None, **more)


def load(errors: int = 0, over: int = 0, p99: float = 12.0, **more: Any) -> dict[str, Any]:
    return gate(
        "load",
        **{
            "requests": 1000, "errors": errors, "over": over, "offered_per_s": 20.0, "slo_ms": 50.0, "phi": 1.0,
            "latency_ms": {"p50": 3.0, "p95": 8.0, "p99": p99}, **more,
        },
    )  # fmt: skip


def gate(name: str, verdict: str = "passed", **evidence: Any) -> dict[str, Any]:
    return {"gate": name, "verdict": verdict, "evidence": evidence}


def report(*gates: dict[str, Any], cpu: str = "EPYC") -> dict[str, Any]:
    return {"gates": list(gates), "hardware": {"facts": {"cpu_model": cpu, "gpus": None}}}


def says(old: Any, new: Any) -> dict[str, str]:
    return {f"{m['gate']} {m['metric']}": m["says"] for m in compare_reports(old, new)["metrics"]}


def test_no_report_on_either_side() -> None:
    assert compare_reports(None, None) == {"gates": [], "metrics": [], "agreement": None}


def test_a_release_without_a_report_is_told_as_not_measured() -> None:
    found = compare_reports(None, report(golden(900)))
    assert found["gates"] == [{"gate": "golden", "old": None, "new": "passed"}]
    assert found["metrics"][0]["old"] is None and found["metrics"][0]["says"] == "only the newer release was measured"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [(900, 900, "no clear difference"), (900, 905, "no clear difference"), (800, 900, "better"), (900, 800, "worse")],
)
def test_accuracy_counts_where_the_intervals_part(old: int, new: int, told: str) -> None:
    assert says(report(golden(old)), report(golden(new)))["golden accuracy"] == told


def test_fewer_errors_are_better_and_more_slow_ones_worse() -> None:
    found = says(report(load(errors=100, over=10)), report(load(errors=0, over=200)))
    assert found["load errors"] == "better" and found["load over the objective"] == "worse"
    assert found["load latency p50"] == "same"
    assert says(report(load()), report(load(p99=90.0)))["load latency p99"] == "no interval is known"


def test_what_clumps_weighs_less() -> None:
    assert says(report(load(over=10)), report(load(over=40)))["load over the objective"] == "worse"
    clumped = report({**load(over=40), "evidence": {**load(over=40)["evidence"], "phi": 20.0}})
    assert says(report(load(over=10)), clumped)["load over the objective"] == "no clear difference"


def test_what_was_measured_otherwise_is_not_compared() -> None:
    assert (
        "another golden set" in says(report(golden(900)), report(golden(100, golden_set="sha256:b")))["golden accuracy"]
    )
    assert "another hardware" in says(report(load()), report(load(errors=900), cpu="Xeon"))["load errors"]
    faster = {**load(), "evidence": {**load()["evidence"], "offered_per_s": 90.0}}
    assert "another rate" in says(report(load()), report(faster))["load errors"]
    slower = {**load(), "evidence": {**load()["evidence"], "slo_ms": 90.0}}
    assert says(report(load()), report(slower))["load over the objective"] == "not comparable: another objective"


def test_answers_to_one_golden_set_are_compared_item_by_item() -> None:
    a, b = report(golden(900, predictions=["x", "y", "z"])), report(golden(900, predictions=["x", "y", "w"]))
    agreed = compare_reports(a, b)["agreement"]
    assert agreed["value"] == pytest.approx(2 / 3) and agreed["n"] == 3 and agreed["low"] < 2 / 3 < agreed["high"]
    other = report(golden(900, golden_set="sha256:b", predictions=["x", "y", "z"]))
    assert compare_reports(a, other)["agreement"] is None
    assert compare_reports(a, report(golden(900)))["agreement"] is None


def test_cold_start_and_flips_and_gates_without_numbers() -> None:
    cold = gate("cold_start", total_s=4.0, first_ms=20.0, steady_ms=3.0)
    flips = golden(900)
    flips["evidence"]["batch_invariance"] = {"flipped": 1, "asked_alone": 10, "low": 0.0, "high": 0.4}
    found = compare_reports(report(cold, gate("contract", "failed"), flips), report(cold, flips))
    assert [row["metric"] for row in found["metrics"]] == ["total", "first", "steady", "accuracy", "batch flips"]
    assert {row["gate"]: (row["old"], row["new"]) for row in found["gates"]}["contract"] == ("failed", None)


def test_a_gate_that_broke_has_nothing_to_compare() -> None:
    assert compare_reports(report(gate("load", "errored"), gate("golden", "errored")), report(load()))["metrics"]
    broke = report(gate("load", "errored"), gate("golden", "errored"), gate("cold_start", "errored", total_s=None))
    assert compare_reports(broke, broke)["metrics"] == []


def numbers(*gates: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is shown of each number of one report."""
    return {
        row["metric"]: row["new"] | {"unit": row["unit"]} for row in compare_reports(None, report(*gates))["metrics"]
    }


def test_each_number_is_shown_with_its_unit_its_interval_and_of_how_many() -> None:
    found = numbers(load(errors=100, over=250), gate("cold_start", total_s=4.0, first_ms=20, steady_ms=3.0))
    share = share_of(100, 1000)
    assert found["errors"] == {"value": 0.1, "low": share.low, "high": share.high, "n": 1000, "unit": "frac"}
    assert found["over the objective"]["value"] == 0.25
    assert found["latency p99"] == {"value": 12.0, "low": None, "high": None, "n": 1000, "unit": "ms"}
    assert [found[name]["unit"] for name in ("total", "first", "steady")] == ["s", "ms", "ms"]
    flips = golden(900)
    flips["evidence"]["batch_invariance"] = {"flipped": 3, "asked_alone": 64, "low": 0.01, "high": 0.13}
    assert numbers(flips)["batch flips"] == {"value": 3 / 64, "low": 0.01, "high": 0.13, "n": 64, "unit": "frac"}


@pytest.mark.parametrize(("phi", "count", "n"), [(None, 40, 1000), (0.5, 40, 1000), (4.0, 10, 250), (3000.0, 0, 1)])
def test_clustered_requests_weigh_less_and_none_weighs_more_than_one(phi: float | None, count: int, n: int) -> None:
    run = load(over=40)
    run["evidence"]["phi"] = phi
    share = share_of(count, n)
    shown = numbers(run)["over the objective"]
    assert (shown["low"], shown["high"], shown["n"]) == (share.low, share.high, 1000)


def test_a_run_without_requests_has_no_shares_and_one_without_a_count_leaves_it_out() -> None:
    assert not {"errors", "over the objective"} & set(numbers(gate("load", requests=0, errors=0, over=0)))
    assert set(numbers(gate("load", requests=10, errors=1))) == {"errors"}
    assert set(numbers(gate("load", requests=10, errors=0, over=None, latency_ms={"p95": 3}))) == {
        "errors",
        "latency p95",
    }


def interval(low: float, high: float) -> dict[str, Any]:
    shown = {"value": (low + high) / 2, "low": low, "high": high, "n": 10}
    return report(gate("golden", accuracy=shown, golden_set="sha256:a", output="p"))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ((0.2, 0.4), (0.4, 0.6), "no clear difference"),
        ((0.4, 0.6), (0.2, 0.4), "no clear difference"),
        ((0.2, 0.4), (0.41, 0.6), "better"),
        ((0.41, 0.6), (0.2, 0.4), "worse"),
    ],
)
def test_intervals_that_touch_do_not_part(old: Any, new: Any, told: str) -> None:
    assert says(interval(*old), interval(*new))["golden accuracy"] == told


@pytest.mark.parametrize("missing", ["low", "high"])
@pytest.mark.parametrize("side", [0, 1])
def test_half_an_interval_is_none(missing: str, side: int) -> None:
    pair = [interval(0.1, 0.2), interval(0.8, 0.9)]
    pair[side]["gates"][0]["evidence"]["accuracy"][missing] = None
    assert says(*pair)["golden accuracy"] == "no interval is known"


def test_the_older_release_alone_is_told_too_and_its_gates_come_first() -> None:
    cold = gate("cold_start", total_s=4.0)
    found = compare_reports(report(cold, golden(900)), report(golden(900), load()))
    assert [row["gate"] for row in found["gates"]] == ["cold_start", "golden", "load"]
    assert [row["metric"] for row in found["metrics"]][:2] == ["total", "accuracy"]
    assert found["metrics"][0]["says"] == "only the older release was measured"
    assert found["metrics"][0]["new"] is None and found["metrics"][0]["old"]["value"] == 4.0


def hardware(**facts: Any) -> dict[str, Any]:
    return {"gates": [load()], "hardware": {"facts": facts}}


def test_hardware_that_nobody_told_is_alike_and_any_told_fact_may_differ() -> None:
    told = {"gpus": ["NVIDIA L4"], "driver": "550.1", "cpu_model": "EPYC", "cpu_count": 16}
    assert says(hardware(**told), hardware(**told))["load errors"] == "no clear difference"
    for name, other in {"gpus": ["NVIDIA H100"], "driver": "535.2", "cpu_model": "Xeon", "cpu_count": 8}.items():
        assert (
            says(hardware(**told), hardware(**{**told, name: other}))["load errors"]
            == "not comparable: another hardware"
        )
    nothing = {"gpus": [], "driver": "", "cpu_model": None}
    for untold in (hardware(**nothing), {"gates": [load()]}, {"gates": [load()], "hardware": None}):
        assert says(hardware(), untold)["load errors"] == "no clear difference"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"golden_set": None}, {"golden_set": None}),
        ({"output": None}, {"output": None}),
        ({"output": "p"}, {"output": "q"}),
        ({"predictions": []}, {"predictions": []}),
        ({"predictions": ["x"]}, {}),
        ({"predictions": None}, {}),
    ],
)
def test_answers_that_were_not_asked_alike_do_not_agree(a: dict[str, Any], b: dict[str, Any]) -> None:
    asked = {"golden_set": "sha256:a", "output": "p", "predictions": ["x", "y"]}
    old, new = report(gate("golden", **asked | a)), report(gate("golden", **asked | b))
    assert compare_reports(old, new)["agreement"] is None
    assert compare_reports(report(gate("golden", **asked)), report(gate("golden", **asked)))["agreement"]["value"] == 1
    assert compare_reports(old, report(load()))["agreement"] is None


def test_a_proven_rate_is_compared_under_one_objective_and_one_protocol() -> None:
    def capacity(rate: float, **more: Any) -> dict[str, Any]:
        return report(gate("capacity", capacity_per_s=rate, slo_ms=60, slo_quantile=0.99, **more))

    key = "capacity proven rate"
    assert says(capacity(50), capacity(60))[key] == "no interval is known"
    assert says(capacity(50), capacity(50, protocol="grpc"))[key] == "same"  # before it was told it was gRPC
    assert says(capacity(50), capacity(50, protocol="http"))[key] == "not comparable: another protocol"
    assert says(report(load()), report(load(protocol="http")))["load latency p50"] == "not comparable: another protocol"
    mixed = report(load(sizes_from="seen"))
    assert says(report(load()), mixed)["load latency p50"] == "not comparable: another mix of sizes"
    assert (
        says(report(gate("capacity", capacity_per_s=None)), capacity(60))[key] == "only the newer release was measured"
    )


def test_the_times_between_tokens_are_shown_where_a_release_streams() -> None:
    found = numbers(load(ttft_ms={"p50": 30.0, "p99": 90.0}, itl_ms={"p99": 12.5}))
    assert found["first token p99"]["value"] == 90 and found["between tokens p99"]["value"] == 12.5
    assert not [name for name in numbers(load()) if "token" in name]


def test_two_runs_at_the_same_asked_rate_are_comparable() -> None:
    """What a run offered is a random count: no two runs offer the same."""
    old, new = (report(load(offered_per_s=one, rate_per_s=8.0)) for one in (7.831, 8.551))
    assert says(old, new)["load errors"] == "no clear difference"
    other = report(load(rate_per_s=16.0))
    assert says(old, other)["load errors"] == "not comparable: another rate"
