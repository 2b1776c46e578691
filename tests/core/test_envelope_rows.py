"""The envelope's rows: each declared value beside its measurement, and what fails, passes, or stays unknown."""

from __future__ import annotations

from typing import Any

import pytest

from validators.core.cold_start import still_loading_s
from validators.core.envelope import judged, table
from validators.core.envelope_values import VALUES
from validators.core.gates import GATES
from validators.core.measured_envelope import measured_entry
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict

L4 = "NVIDIA-L4"
MIB = 2**20
DEFAULT = parse_policy({}).of("envelope")
#: What each gate measured, of a release with every value.
EVIDENCE: dict[str, dict[str, Any]] = {
    "cold_start": {"timings": {"fetch_s": 2.0, "load_s": 4.0, "warmup_s": 1.0}},
    "load": {
        "requests": 2000, "errors": 20, "phi": 1.5, "rate_per_s": 20, "offered_per_s": 20, "achieved_per_s": 20,
        "in_flight": 0.5, "streams": 2000,
        "latency_ms": {"p50": 20.0, "p95": 40.0, "p99": 55.0, "mean": 25.0},
        "latency_low_ms": {"p50": 19.0, "p95": 38.0, "p99": 50.0},
        "ttft_ms": {"p50": 20.0, "p95": 40.0, "p99": 55.0}, "ttft_low_ms": {"p50": 19.0, "p95": 38.0, "p99": 50.0},
        "itl_ms": {"p50": 20.0, "p95": 40.0, "p99": 55.0}, "itl_low_ms": {"p50": 19.0, "p95": 38.0, "p99": 50.0},
        "responses": 20_000, "slo_test": {"log_e_pass": 5.0, "log_e_fail": -5.0, "confidence": 0.95},
    },
    "resources": {
        "peaks": {"memory_bytes": 300 * MIB, "shared_bytes": 8 * MIB}, "gpu_memory_bytes": 900 * MIB, "cores_used": 1.5,
    },
    "capacity": {
        "capacity_per_s": 50.0,
        "points": [{"rate_per_s": 60.0, "found": "refuted", "latency_ms": {}, "requests": 40, "errors": 0}],
    },
    "gpu": {"gpus": [{"highest_power_w": 300.0, "median_busy_frac": 0.6}], "windows": [{"gate": "load"}]},
}  # fmt: skip
#: (path, a value that holds, one that is broken). In a performance entry unless it begins with the envelope's part.
DECLARED: list[tuple[str, Any, Any]] = [
    ("host.memory_mib_min", 300, 299),
    ("host.shm_mib_min", 8, 7),
    ("host.cpu_cores_min", 1.5, 1.2),
    ("accelerator.memory_mib_peak_declared", 900, 899),
    ("lifecycle.load_timeout_s", 4, 3),
    *((f"{name}.{share}", high, low) for name in ("latency_ms", "ttft_ms", "itl_ms")
      for share, high, low in (("p50", 20, 15), ("p95", 40, 30), ("p99", 55, 40))),
    ("throughput", {"value": 50, "unit": "requests_per_s"}, {"value": 80, "unit": "requests_per_s"}),
    ("error_max_frac", 0.01, 0.001),
    ("cold_start_s.download", 2, 1),
    ("cold_start_s.load", 4, 3),
    ("cold_start_s.warmup", 1, 0.5),
    ("gpu_memory_mib_peak", 900, 700),
    ("power_w", 300, 200),
    ("gpu_util_pct", 60, 40),
]  # fmt: skip


def declaring(path: str, value: Any) -> dict[str, Any]:
    """An envelope that declares this one value."""
    part, _, rest = path.partition(".")
    if part in ("host", "lifecycle"):
        return {part: {rest: value}}
    if part == "accelerator":
        return {part: {"vendor": "nvidia", rest: value}}
    entry: dict[str, Any] = {"hardware": L4, "workload": "w", "source": "declared"}
    return {"performance": [{**entry, part: {rest: value} if rest else value}]}


def run(
    envelope: dict[str, Any], policy: dict[str, Any] = DEFAULT, hardware: str = "NVIDIA L4", **evidence: dict[str, Any]
) -> dict[str, Judgement]:
    """Every gate's judgement, each having passed."""
    return {
        gate: judged(
            Judgement(Verdict.PASSED, "Fine.", evidence.get(gate, EVIDENCE[gate])),
            gate, envelope, policy, hardware=hardware, uses_gpu=True,
        )
        for gate in EVIDENCE
    }  # fmt: skip


def rows(envelope: dict[str, Any], found: dict[str, Judgement]) -> dict[str, dict[str, Any]]:
    gates = [{"gate": gate, "verdict": one.verdict, "evidence": one.evidence} for gate, one in found.items()]
    return {row["field"]: row for row in table(envelope, gates, uses_gpu=True)}


def test_the_cases_are_all_values() -> None:
    assert [path for path, _, _ in DECLARED] == [value.field for value in VALUES]
    assert {name for name, gate in GATES.items() if gate.reads} == set(EVIDENCE)
    assert {field for gate in GATES.values() for field in gate.reads} == {value.field for value in VALUES}


@pytest.mark.parametrize(("path", "holds", "broken"), DECLARED, ids=[path for path, _, _ in DECLARED])
def test_a_breach_fails_the_gate_that_measured_it_with_both_numbers(path: str, holds: Any, broken: Any) -> None:
    for value, verdict in ((holds, "passed"), (broken, "failed")):
        envelope = declaring(path, value)
        found = run(envelope)
        (row,) = (
            row for field, row in rows(envelope, found).items() if field.endswith(path) and row["declared"] is not None
        )
        assert row["verdict"] == verdict, row["sentence"]
        assert row["declared"] == (value["value"] if isinstance(value, dict) else value)
        failed = [gate for gate, one in found.items() if one.verdict is Verdict.FAILED]
        assert failed == ([] if verdict == "passed" else [row["gate"]])
        if failed:
            assert found[row["gate"]].reason == f"{row['sentence']} The gate's own limits: Fine."
            assert row["sentence"].startswith("Its envelope declares ")
    assert row["measured"] is not None


@pytest.mark.parametrize("path", [path for path, _, _ in DECLARED])
def test_a_value_that_is_not_declared_is_unknown_with_what_was_measured(path: str) -> None:
    found = run({})
    assert {one.verdict for one in found.values()} == {Verdict.PASSED}
    row = rows({}, found)[path]
    assert (row["verdict"], row["declared"]) == ("unknown", None)
    assert (row["measured"] is None) == (path == "throughput"), "a throughput has no unit before it is declared"


@pytest.mark.parametrize("path", [path for path, _, _ in DECLARED])
def test_a_value_that_no_gate_measured_is_unknown_and_never_fine(path: str) -> None:
    envelope = declaring(path, next(holds for name, holds, _ in DECLARED if name == path))
    for gates, says in (
        ([], "No gate has run."),
        ([{"gate": "contract", "verdict": "passed", "evidence": {}}], "names no"),
    ):
        (row,) = (row for row in table(envelope, gates, uses_gpu=True) if row["declared"] is not None)
        assert (row["verdict"], row["measured"]) == ("unknown", None) and says in row["sentence"]
    skipped = [{"gate": gate, "verdict": "skipped", "evidence": {}} for gate in EVIDENCE]
    (row,) = (row for row in table(envelope, skipped, uses_gpu=True) if row["declared"] is not None)
    assert row["verdict"] == "unknown" and "was skipped" in row["sentence"]


def test_a_limit_that_the_gate_could_not_read_is_undecided() -> None:
    limits = (
        "host.memory_mib_min",
        "host.shm_mib_min",
        "accelerator.memory_mib_peak_declared",
        "accelerator.memory_mib_min",
    )
    for path in limits:
        for policy in (DEFAULT, {**DEFAULT, "on_breach": "warn"}):
            envelope = declaring(path, 5000)
            envelope.setdefault("host", {})["cpu_cores_min"] = 1 if policy["on_breach"] == "warn" else 2
            found = run(envelope, policy, resources={"peaks": {}, "gpu_memory_bytes": None, "cores_used": 1.5})
            assert found["resources"].verdict is Verdict.UNDECIDED, path
            assert "could not measure it" in found["resources"].reason
    assert run(declaring("lifecycle.load_timeout_s", 4), cold_start={})["cold_start"].verdict is Verdict.UNDECIDED
    assert run(declaring("latency_ms.p99", 55), load={})["load"].verdict is Verdict.PASSED, "only limits hold a gate up"


def test_a_policy_may_only_warn() -> None:
    envelope = declaring("latency_ms.p99", 40)
    found = run(envelope, {**DEFAULT, "on_breach": "warn"})
    assert found["load"].verdict is Verdict.PASSED
    assert found["load"].reason == (
        "Fine. Warning: Its envelope declares 40 ms (p99 latency); 55 ms were measured at 20 requests/s."
    )
    assert rows(envelope, found)["performance[0].latency_ms.p99"]["verdict"] == "failed"


def test_the_tolerance_is_for_times_and_rates_and_not_for_memory() -> None:
    for tolerance, verdict in ((0.1, Verdict.FAILED), (0.26, Verdict.PASSED)):
        policy = {**DEFAULT, "tolerance_frac": tolerance}
        assert run(declaring("cold_start_s.load", 3.2), policy)["cold_start"].verdict is verdict
        assert run(declaring("host.memory_mib_min", 299), policy)["resources"].verdict is Verdict.FAILED
        assert run(declaring("lifecycle.load_timeout_s", 3.9), policy)["cold_start"].verdict is Verdict.FAILED
    searched = declaring("throughput", {"value": 62, "unit": "requests_per_s"})
    assert run(searched, {**DEFAULT, "tolerance_frac": 0.25})["capacity"].verdict is Verdict.PASSED
    assert run(searched, {**DEFAULT, "tolerance_frac": 0.0})["capacity"].verdict is Verdict.FAILED
    assert run(searched)["capacity"].verdict is Verdict.UNDECIDED, (
        "62 less a tenth is proven by nothing, and not refuted"
    )


@pytest.mark.parametrize(
    ("shape", "p99", "verdict"),
    [
        ({"mode": "open", "rate_per_s": 20}, 60, "passed"),
        ({"mode": "open", "rate_per_s": 15}, 60, "passed"),  # it held a heavier load
        ({"mode": "open", "rate_per_s": 40}, 60, "unknown"),  # a lighter load proves nothing of it
        ({"mode": "open", "rate_per_s": 40}, 40, "failed"),  # it was slower under a lighter load
        ({"mode": "open", "rate_per_s": 15}, 40, "unknown"),  # a heavier load may make it slower
        ({"mode": "closed", "concurrency": 1}, 60, "unknown"),  # 20/s × 25 ms: half a request in flight
        ({"mode": "closed", "concurrency": 1}, 40, "failed"),
    ],
)
def test_a_time_is_declared_for_its_own_load(shape: dict[str, Any], p99: float, verdict: str) -> None:
    envelope = declaring("latency_ms.p99", p99)
    envelope["performance"][0]["load_shape"] = shape
    row = rows(envelope, run(envelope))["performance[0].latency_ms.p99"]
    assert row["verdict"] == verdict, row["sentence"]
    assert row["measured"] == 55 and row["sentence"]


def test_a_batch_that_waits_to_fill_under_a_lighter_load_refutes_nothing() -> None:
    """The premise that a lighter load is no slower breaks where a batcher waits for more requests."""
    envelope = declaring("latency_ms.p99", 40)
    envelope["performance"][0]["load_shape"] = {"mode": "open", "rate_per_s": 40}
    found = Judgement(Verdict.PASSED, "Fine.", EVIDENCE["load"])
    for delay_ms, rate_per_s, verdict in ((0.0, 40, "failed"), (20.0, 40, "passed"), (20.0, 20, "failed")):
        envelope["performance"][0]["load_shape"]["rate_per_s"] = rate_per_s
        args = ("load", envelope, DEFAULT)
        waits = judged(found, *args, hardware=L4, uses_gpu=True, queue_delay_ms=delay_ms)
        assert waits.verdict == verdict, (delay_ms, rate_per_s)


def test_a_rate_of_the_capacity_search_is_a_load_of_its_own() -> None:
    point = {"rate_per_s": 40.0, "requests": 4000, "errors": 0, "found": "proven"}
    times = {"latency_ms": {"p99": 90.0}, "latency_low_ms": {"p99": 80.0}}
    envelope = declaring("latency_ms.p99", 60)
    envelope["performance"][0]["load_shape"] = {"mode": "open", "rate_per_s": 40}
    found = run(envelope, capacity={"capacity_per_s": 40.0, "points": [{**point, **times}]})
    assert (found["load"].verdict, found["capacity"].verdict) == (Verdict.PASSED, Verdict.FAILED)
    assert "60 ms (p99 latency); 90 ms were measured at 40 requests/s" in found["capacity"].reason
    assert rows(envelope, found)["performance[0].latency_ms.p99"]["gate"] == "capacity", "the most telling row is shown"


SEARCHED = {
    "rate_per_s": 200.0, "requests": 2000, "errors": 0, "found": "refuted", "in_flight": 600.0,
    "latency_ms": {"p99": 3000.0}, "latency_low_ms": {"p99": 2800.0},
}  # fmt: skip


@pytest.mark.parametrize("shape", [{}, {"mode": "open"}, {"mode": "closed"}])
def test_a_time_without_a_load_is_not_judged_by_the_overload_of_a_search(shape: dict[str, Any]) -> None:
    envelope = declaring("latency_ms.p99", 60)
    if shape:
        envelope["performance"][0]["load_shape"] = shape
    found = run(envelope, capacity={"capacity_per_s": 50.0, "points": [SEARCHED]})
    assert found["capacity"].verdict is Verdict.PASSED, found["capacity"].reason
    assert rows(envelope, found)["performance[0].latency_ms.p99"]["verdict"] == "passed", "the load gate measured it"


@pytest.mark.parametrize("path", ["power_w", "gpu_util_pct", "gpu_memory_mib_peak"])
@pytest.mark.parametrize(
    ("rate", "verdicts"), [(1000, ("unknown", "failed")), (20, ("passed", "failed")), (1, ("passed", "unknown"))]
)
def test_what_a_gpu_does_depends_on_the_load_gates_rate(path: str, rate: float, verdicts: tuple[str, str]) -> None:
    for value, verdict in zip(
        next((holds, broken) for name, holds, broken in DECLARED if name == path), verdicts, strict=True
    ):
        envelope = declaring(path, value)
        envelope["performance"][0]["load_shape"] = {"mode": "open", "rate_per_s": rate}
        found = {
            gate: judged(
                Judgement(Verdict.PASSED, "Fine.", EVIDENCE[gate]),
                gate,
                envelope,
                DEFAULT,
                hardware=L4,
                uses_gpu=True,
                load_per_s=20.0,
            )
            for gate in EVIDENCE
        }
        assert rows(envelope, found)[f"performance[0].{path}"]["verdict"] == verdict, (value, rate)
    assert run(declaring("power_w", 1), gpu={**EVIDENCE["gpu"], "windows": []})["gpu"].verdict is Verdict.PASSED


def test_a_throughput_of_a_closed_load_is_unknown() -> None:
    envelope = declaring("throughput", {"value": 80, "unit": "requests_per_s"})
    envelope["performance"][0]["load_shape"] = {"mode": "closed", "concurrency": 1}
    found = run(envelope)
    assert found["capacity"].verdict is Verdict.PASSED
    assert rows(envelope, found)["performance[0].throughput"]["verdict"] == "unknown"


def test_no_tolerance_makes_every_throughput_pass() -> None:
    slow = {"capacity_per_s": 2.0, "points": [{**SEARCHED, "rate_per_s": 3.0}]}
    for tolerance in (0.0, 1.0, 10.0):
        policy = {**DEFAULT, "tolerance_frac": tolerance}
        found = run(declaring("throughput", {"value": 80, "unit": "requests_per_s"}), policy, capacity=slow)
        assert found["capacity"].verdict is Verdict.FAILED, tolerance


def test_only_the_objectives_own_test_refutes_a_throughput() -> None:
    for log_e_fail, fails in ((0.05, False), (4.0, True)):
        test = {"log_e_pass": -1.0, "log_e_fail": log_e_fail, "confidence": 0.95}
        found = judged(
            Judgement(Verdict.FAILED, "Not back after the burst.", {**EVIDENCE["load"], "slo_test": test}),
            "load", declaring("throughput", {"value": 50, "unit": "requests_per_s"}), DEFAULT, hardware=L4, uses_gpu=True,
        )  # fmt: skip
        assert ("the objective was missed" in found.reason) is fails


def test_requests_that_had_no_answer_are_slower_than_any_quantile() -> None:
    failing = {**EVIDENCE["load"], "errors": 60}
    envelope = declaring("latency_ms.p99", 60)
    assert rows(envelope, run(envelope, load=failing))["performance[0].latency_ms.p99"]["verdict"] == "unknown"
    few = {**EVIDENCE["load"], "streams": 3}
    envelope = declaring("itl_ms.p99", 60)
    assert rows(envelope, run(envelope, load=few))["performance[0].itl_ms.p99"]["verdict"] == "unknown"


def test_a_reason_is_short_however_many_entries_are_broken() -> None:
    envelope = declaring("latency_ms.p99", 1)
    envelope["performance"] *= 200
    assert len(run(envelope)["load"].reason) < 1000
    assert "And 197 more values of the envelope." in run(envelope)["load"].reason


def test_a_gpu_at_fault_leaves_no_rows() -> None:
    evidence = {
        name: value
        for name, value in run(declaring("latency_ms.p99", 40))["load"].evidence.items()
        if name != "envelope"
    }
    gates = [{"gate": "load", "verdict": "errored", "evidence": evidence}]
    (row,) = (
        row for row in table(declaring("latency_ms.p99", 40), gates, uses_gpu=True) if row["declared"] is not None
    )
    assert row["verdict"] == "unknown" and row["sentence"] == "The load gate is errored, and did not measure it."
    old = [{"gate": "load", "verdict": "passed", "evidence": evidence}]
    (row,) = (row for row in table(declaring("latency_ms.p99", 40), old, uses_gpu=True) if row["declared"] is not None)
    assert row["sentence"] == "The load gate did not compare it with the envelope.", "a report from before"


def test_the_numbers_of_a_breach_differ_in_its_sentence() -> None:
    found = run(declaring("lifecycle.load_timeout_s", 3), cold_start={"timings": {"load_s": 3.001}})["cold_start"]
    assert found.reason.startswith("Its envelope declares 3 s (time to load); 3.001 s were measured.")


def test_what_a_report_measured_holds_when_it_is_measured_again() -> None:
    """`release envelope` writes it; the next start is slower, and one more request fails."""
    point = {
        "rate_per_s": 50.0, "requests": 2000, "errors": 0, "found": "proven", "seconds": 40, "in_flight": 1.0,
        "latency_ms": {"p50": 20.0, "p95": 40.0, "p99": 55.0}, "latency_low_ms": {"p50": 19.0, "p95": 38.0, "p99": 50.0},
    }  # fmt: skip
    capacity = {"capacity_per_s": 50.0, "hardware": "NVIDIA L4", "points": [point], "slo_quantile": 0.99, "slo_ms": 250}
    timings = {"fetch_s": 0.012, "load_s": 1.9, "warmup_s": 0.08}
    gates = [{"gate": "capacity", "evidence": capacity}, {"gate": "cold_start", "evidence": {"timings": timings}}]
    entry = measured_entry({"gates": gates}, "sha256:1")
    assert entry is not None and "download" not in entry["cold_start_s"]
    envelope = {"performance": [entry]}
    again = {"timings": {"fetch_s": 0.4, "load_s": 2.2, "warmup_s": 0.095}}
    slower = {
        **point,
        "latency_ms": {"p50": 22.0, "p95": 47.0, "p99": 70.0},
        "latency_low_ms": {"p50": 20.0, "p95": 42.0, "p99": 58.0},
    }
    load = {**EVIDENCE["load"], "errors": 1}
    found = run(envelope, cold_start=again, load=load, capacity={**capacity, "points": [slower]})
    assert {one.verdict for one in found.values()} == {Verdict.PASSED}, [one.reason for one in found.values()]


def test_other_hardware_and_other_batches_speak_of_nothing() -> None:
    envelope = declaring("latency_ms.p99", 1)
    assert run(envelope)["load"].verdict is Verdict.FAILED
    for hardware, says in (("Xeon", "it was measured on Xeon"), ("", "that its node did not name")):
        found = run(envelope, hardware=hardware)
        assert found["load"].verdict is Verdict.PASSED
        assert says in rows(envelope, found)["performance[0].latency_ms.p99"]["sentence"]
    envelope["performance"][0]["batch_size"] = 8
    assert "in batches of 8" in rows(envelope, run(envelope))["performance[0].latency_ms.p99"]["sentence"]


def test_a_machine_that_stable_was_slow_on_too_refutes_nothing() -> None:
    excused = {**EVIDENCE["load"], "beside_stable": {"stable": "r1"}}
    assert run(declaring("latency_ms.p99", 40), load=excused)["load"].verdict is Verdict.PASSED


def test_too_few_requests_prove_nothing() -> None:
    few = {**EVIDENCE["load"], "requests": 90, "errors": 0}
    envelope = declaring("latency_ms.p99", 60)
    row = rows(envelope, run(envelope, load=few))["performance[0].latency_ms.p99"]
    assert row["verdict"] == "unknown" and "of 90 requests, and 100 are needed" in row["sentence"]


def test_no_number_of_answers_proves_that_there_are_no_errors() -> None:
    for errors, declared, verdict in (
        (0, 0, "unknown"),
        (0, 0.01, "passed"),
        (0, 0.0001, "unknown"),
        (200, 0, "failed"),
    ):
        envelope = declaring("error_max_frac", declared)
        found = run(envelope, load={**EVIDENCE["load"], "errors": errors})
        assert rows(envelope, found)["performance[0].error_max_frac"]["verdict"] == verdict, (errors, declared)


def test_a_load_that_ends_with_the_envelopes_own_time_is_a_breach_of_it() -> None:
    reason = "r1 did not become ready: load_failed: tiny was still loading after 0.1 s; make its start faster, or raise its time."
    assert still_loading_s(reason) == 0.1 and still_loading_s("load_failed: no module named foo") is None
    envelope = {"lifecycle": {"load_timeout_s": 0.1}, **declaring("cold_start_s.load", 0.01)}
    found = judged(
        Judgement(Verdict.FAILED, reason, {"still_loading_s": 0.1}),
        "cold_start",
        envelope,
        DEFAULT,
        hardware=L4,
        uses_gpu=False,
    )
    assert "Its envelope declares 0.1 s (time to load); more than 0.1 s were measured." in found.reason
    by_field = {row["field"]: row["verdict"] for row in found.evidence["envelope"]}
    assert by_field == {"lifecycle.load_timeout_s": "failed", "performance[0].cold_start_s.load": "failed"}
    longer = declaring("cold_start_s.load", 5)
    found = judged(
        Judgement(Verdict.FAILED, reason, {"still_loading_s": 0.1}),
        "cold_start",
        longer,
        DEFAULT,
        hardware=L4,
        uses_gpu=False,
    )
    assert [row["verdict"] for row in found.evidence["envelope"] if row["declared"]] == ["unknown"], (
        "it might have taken 4 s"
    )


def test_gates_that_broke_or_did_not_run_judge_no_envelope() -> None:
    for verdict in (Verdict.ERRORED, Verdict.SKIPPED):
        found = Judgement(verdict, "It broke.", EVIDENCE["load"])
        args = ("load", declaring("latency_ms.p99", 1), DEFAULT)
        assert judged(found, *args, hardware=L4, uses_gpu=True) is found


def test_gpu_memory_is_declared_and_compared_for_each_device() -> None:
    for path in ("accelerator.memory_mib_peak_declared", "gpu_memory_mib_peak"):
        for declared, verdict in ((450, Verdict.PASSED), (400, Verdict.FAILED)):
            envelope = declaring(path, declared)
            envelope.setdefault("accelerator", {"vendor": "nvidia"})["count"] = 2
            found = run(envelope)["resources"]
            assert found.verdict is verdict, (path, declared)
            (row,) = (row for row in found.evidence["envelope"] if row["declared"] is not None)
            assert (row["declared"], row["measured"]) == (declared, 450)
    least = {"accelerator": {"vendor": "nvidia", "memory_mib_min": 899}}
    assert run(least)["resources"].verdict is Verdict.FAILED, "without a peak the least memory counts"


def test_a_release_without_a_gpu_has_no_rows_of_one() -> None:
    fields = {row["field"] for row in table({}, [], uses_gpu=False)}
    assert not {"gpu_memory_mib_peak", "power_w", "accelerator.memory_mib_peak_declared"} & fields
    assert {"host.memory_mib_min", "latency_ms.p99", "ttft_ms.p99"} <= fields
