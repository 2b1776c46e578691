"""Open-loop schedules and summaries, the load verdict, the cold start verdict, whose fault a failure is, and the gate policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accounts.core.errors import Invalid
from validators.core.cold_start import judge_cold_start
from validators.core.fault import verdict_of_failure
from validators.core.load import Attempt, generator_limit, judge_load, poisson_schedule, summarise
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict


def test_a_schedule_is_rising_within_its_time_and_repeatable() -> None:
    schedule = poisson_schedule(50, 10, seed=4)
    assert len(schedule) == 500
    assert (np.diff(schedule) >= 0).all()
    assert schedule[0] >= 0
    assert schedule[-1] < 10
    assert (schedule == poisson_schedule(50, 10, seed=4)).all()
    assert (schedule != poisson_schedule(50, 10, seed=5)).any()


def test_its_gaps_are_those_of_random_arrivals() -> None:
    gaps = np.diff(poisson_schedule(100, 200, seed=1))
    assert gaps.mean() == pytest.approx(0.01, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)


def test_latency_counts_from_when_a_request_was_due() -> None:
    stalled = [Attempt(due_s=0.0, sent_s=0.0, done_s=1.0), Attempt(due_s=0.1, sent_s=1.0, done_s=1.005)]
    summary = summarise(stalled, duration_s=2, slo_ms=250)
    assert summary.latency_ms["p50"] == pytest.approx((1000 + 905) / 2)
    assert summary.over == 2
    assert summary.lag_max_ms == pytest.approx(900)


def _run(n: int = 160, duration_s: float = 8.0, slow: int = 0, errors: int = 0, lag_s: float = 0.0) -> list[Attempt]:
    out = []
    for i, due in enumerate(poisson_schedule(n / duration_s, duration_s, seed=1)):
        took = 1.0 if i < slow else 0.01
        out.append(
            Attempt(
                float(due),
                float(due) + lag_s,
                float(due) + lag_s + took,
                "boom [server_error]" if n - i <= errors else "",
            )
        )
    return out


def _judge(attempts: list[Attempt], duration_s: float = 8.0, **policy: Any) -> Judgement:
    section = parse_policy({"load": {"slo_ms": 250, "duration_s": duration_s, **policy}}).of("load")
    return judge_load(summarise(attempts, duration_s=duration_s, slo_ms=section["slo_ms"] or float("inf")), section)


def test_a_short_clean_run_is_undecided_and_says_how_long_a_pass_takes() -> None:
    judged = _judge(_run())
    assert judged.verdict is Verdict.UNDECIDED
    assert "a pass takes at least" in judged.reason
    assert judged.evidence["offered_per_s"] == pytest.approx(20)


def test_a_long_clean_run_passes_and_a_slow_one_fails() -> None:
    assert _judge(_run(2000, 20), 20).verdict is Verdict.PASSED
    slow = _judge(_run(slow=160))
    assert slow.verdict is Verdict.FAILED
    assert "160 of 160 requests were over 250 ms" in slow.reason


def test_errors_fail_before_latency_is_looked_at() -> None:
    judged = _judge(_run(errors=2))
    assert judged.verdict is Verdict.FAILED
    assert "2 of 160 requests failed" in judged.reason
    assert "boom" in judged.reason
    assert _judge(_run(2000, 20, errors=2), 20, max_error_frac=0.01).verdict is Verdict.PASSED


def test_a_late_generator_is_an_error_of_the_check() -> None:
    judged = _judge(_run(lag_s=0.2))
    assert judged.verdict is Verdict.ERRORED
    assert judged.reason.startswith("generator_limited")
    assert _judge(_run(2000, 20, lag_s=0.2), 20, max_lag_ms=300).verdict is Verdict.PASSED


def test_a_generator_that_sent_too_little_is_limited() -> None:
    attempts = [Attempt(float(i) / 20, 0.001 + i / 10, 0.01 + i / 10) for i in range(160)]
    assert "instead of 20.0" in generator_limit(summarise(attempts, duration_s=8, slo_ms=250), max_lag_ms=1e9)


def test_without_an_objective_only_errors_are_judged() -> None:
    judged = _judge(_run(slow=160), slo_ms=None)
    assert judged.verdict is Verdict.PASSED
    assert "no latency objective" in judged.reason


COLD = parse_policy({"cold_start": {"max_s": 10, "max_first_excess_ms": 100}}).of("cold_start")


@pytest.mark.parametrize(
    ("timings", "latencies", "envelope", "verdict", "says"),
    [
        ({"fetch_s": 1, "load_s": 2, "warmup_s": 0.5}, [20.0] * 10, {}, Verdict.PASSED, "Ready after 3.5 s"),
        (
            {"fetch_s": 1, "load_s": 12, "warmup_s": 0.5},
            [20.0] * 10,
            {},
            Verdict.FAILED,
            "13.5 s from nothing to ready",
        ),
        ({"load_s": 5}, [20.0] * 10, {"lifecycle": {"load_timeout_s": 4}}, Verdict.FAILED, "its own envelope"),
        ({"load_s": 5}, [900.0] + [20.0] * 9, {}, Verdict.FAILED, "Declare a warm-up"),
        ({}, [20.0] * 10, {}, Verdict.ERRORED, "measured no cold start"),
    ],
)
def test_a_cold_start_is_judged_by_its_parts_and_its_first_inference(
    timings: dict[str, float], latencies: list[float], envelope: dict[str, Any], verdict: Verdict, says: str
) -> None:
    judged = judge_cold_start(timings, latencies, COLD, envelope)
    assert judged.verdict is verdict
    assert says in judged.reason


@pytest.mark.parametrize(
    ("reason", "last_state", "verdict"),
    [
        ("load_failed: no module named foo", "loading", Verdict.FAILED),
        ("warmup_failed: KeyError", "warming", Verdict.FAILED),
        ("fetch_failed: the store is away", "fetching", Verdict.ERRORED),
        ("runtime_mismatch: this node does not run it", "fetching", Verdict.ERRORED),
        ("digest_mismatch: the bytes changed", "fetching", Verdict.ERRORED),
        ("", "fetching", Verdict.ERRORED),
        ("", "loading", Verdict.FAILED),
    ],
)
def test_whose_fault_a_failed_deployment_is(reason: str, last_state: str, verdict: Verdict) -> None:
    assert verdict_of_failure(reason, last_state) is verdict


def test_an_empty_policy_is_the_default_and_leaves_golden_out() -> None:
    policy = parse_policy({})
    assert policy.gates == ("contract", "cold_start", "load")
    assert policy.of("load")["undecided"] == "allow"
    assert policy.of("cold_start")["max_s"] == 60


def test_reading_a_policy_twice_names_the_same_demands() -> None:
    policy = parse_policy({"golden": {"set": "sha256:" + "a" * 64}, "load": {"slo_ms": 250}})
    assert policy.gates == ("contract", "cold_start", "golden", "load")
    again = parse_policy(policy.document)
    assert again == policy
    assert parse_policy({"load": {"rate_per_s": 20}}).digest == parse_policy({}).digest
    assert parse_policy({"load": {"rate_per_s": 21}}).digest != parse_policy({}).digest


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"gate": []}, "gate"),
        ({"gates": ["contract", "smell"]}, "gates[1]"),
        ({"gates": ["load", "load"]}, "gates"),
        ({"gates": []}, "gates"),
        ({"gates": ["golden"]}, "golden.set"),
        ({"golden": {"set": "latest"}}, "golden.set"),
        ({"golden": {"min_agreement": 95}}, "golden.min_agreement"),
        ({"load": {"slo": 250}}, "load.slo"),
        ({"load": {"slo_quantile": 1}}, "load.slo_quantile"),
        ({"cold_start": {"max_s": "60"}}, "cold_start.max_s"),
        ({"contract": {"batch_sizes": [0]}}, "contract.batch_sizes[0]"),
        ({"load": {"undecided": "ignore"}}, "load.undecided"),
    ],
)
def test_a_wrong_policy_names_the_field_and_the_fix(document: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_policy(document)
    assert caught.value.code == "gate_policy_invalid"
    (error,) = caught.value.facts["errors"]
    assert error["field"] == field
    assert error["message"]
    assert error["fix"]
