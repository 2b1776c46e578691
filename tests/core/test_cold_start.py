"""The cold start's limits at their edges, and the numbers that its evidence holds."""

from __future__ import annotations

from typing import Any

import pytest

from validators.core.cold_start import judge_cold_start
from validators.core.envelope import judged as with_envelope
from validators.core.fault import MACHINE_FAULTS, RELEASE_FAULTS, verdict_of_failure
from validators.core.verdict import Judgement, Verdict

POLICY = {"max_s": 10, "max_first_excess_ms": 100}
STEADY = [20.0] * 10


def judged(timings: dict[str, float], latencies_ms: list[float] = STEADY, declared_s: float | None = None) -> Judgement:
    found = judge_cold_start(timings, latencies_ms, POLICY)
    envelope: dict[str, Any] = {} if declared_s is None else {"lifecycle": {"load_timeout_s": declared_s}}
    policy = {"on_breach": "fail", "tolerance_frac": 0.1}
    return with_envelope(found, "cold_start", envelope, policy, hardware="Xeon", uses_gpu=False)


@pytest.mark.parametrize(("fetch_s", "verdict"), [(5.999, "passed"), (6.0, "passed"), (6.001, "failed")])
def test_its_parts_may_add_up_to_what_is_allowed_and_to_no_more(fetch_s: float, verdict: str) -> None:
    assert judged({"fetch_s": fetch_s, "load_s": 3.0, "warmup_s": 1.0, "other_s": 99.0}).verdict == verdict


@pytest.mark.parametrize(("load_s", "verdict"), [(2.999, "passed"), (3.0, "passed"), (3.001, "failed")])
def test_loading_may_take_what_its_own_envelope_says(load_s: float, verdict: str) -> None:
    found = judged({"load_s": load_s}, declared_s=3)
    assert found.verdict == verdict
    assert ("Its envelope declares 3 s (time to load)" in found.reason) is (verdict == "failed")
    assert judged({"load_s": load_s}).verdict is Verdict.PASSED, "an envelope that says nothing allows anything"


def test_a_limit_on_a_part_that_was_not_measured_is_undecided() -> None:
    assert judged({"fetch_s": 1.0}, declared_s=0.5).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(("first_ms", "verdict"), [(119.9, "passed"), (120.0, "passed"), (120.1, "failed")])
def test_the_first_inference_may_be_slower_by_what_is_allowed(first_ms: float, verdict: str) -> None:
    assert judged({"load_s": 1.0}, [first_ms, 500.0, 400.0, 20.0, 20.0, 20.0]).verdict == verdict


def test_the_evidence_is_in_milliseconds_and_steady_is_the_median_of_the_later_half() -> None:
    found = judged(
        {"fetch_s": 1.00049, "load_s": 2.0, "warmup_s": 0.25}, [90.12345, 80, 70, 30, 10, 20.0], declared_s=5
    )
    rows = found.evidence.pop("envelope")
    assert {(row["field"], row["measured"], row["verdict"]) for row in rows} == {
        ("lifecycle.load_timeout_s", 2.0, "passed"), ("cold_start_s.download", 1.0, "unknown"),
        ("cold_start_s.load", 2.0, "unknown"), ("cold_start_s.warmup", 0.25, "unknown"),
    }  # fmt: skip
    assert found.evidence == {
        "timings": {"fetch_s": 1.0, "load_s": 2.0, "warmup_s": 0.25}, "total_s": 3.25, "max_s": 10,
        "first_ms": 90.123, "steady_ms": 20, "inferences": 6, "first_excess_ms": 70.123,
    }  # fmt: skip
    assert found.reason == "Ready after 3.2 s; the first inference took 90 ms, later ones 20 ms."
    thirds = judged({"fetch_s": 0.1, "load_s": 0.2}, [50.0, 40.0, 30.0, 20.0004])
    assert (thirds.evidence["total_s"], thirds.evidence["steady_ms"]) == (0.3, 25.0)
    fine = judged({"load_s": 1.0}, [50.0, 20.00049])
    assert fine.evidence["steady_ms"] == 20.0
    odd = judged({"load_s": 1.2345}, [50.0, 40.0, 30.0004, 20.0, 10.0])
    assert (odd.evidence["steady_ms"], odd.evidence["timings"]) == (20.0, {"load_s": 1.234})


@pytest.mark.parametrize("state", ["fetching", "loading", "warming"])
def test_a_launchers_own_word_decides_over_the_state(state: str) -> None:
    for code in RELEASE_FAULTS:
        assert verdict_of_failure(f"{code}: no", state) is Verdict.FAILED
    for code in MACHINE_FAULTS:
        assert verdict_of_failure(f"{code}: no", state) is Verdict.ERRORED
    assert verdict_of_failure("it was lost", state) is (Verdict.ERRORED if state == "fetching" else Verdict.FAILED)
