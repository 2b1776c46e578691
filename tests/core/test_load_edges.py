"""The load gate's numbers computed by hand, and each of its limits at its very edge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from validators.core.full_server import Burst, burst_of, judge_full
from validators.core.load import (
    Attempt,
    LoadSummary,
    arrivals,
    generator_limit,
    judge_load,
    max_lag_ms,
    proven_all_the_same,
    summarise,
)
from validators.core.policy import parse_policy
from validators.core.slo import judge_slo, least_requests
from validators.core.verdict import Judgement, Verdict


def took(*latencies_ms: float) -> list[Attempt]:
    """One request each tenth of a second from 0 on, sent when due."""
    return [Attempt(i / 10, i / 10, i / 10 + ms / 1000) for i, ms in enumerate(latencies_ms)]


def section(**load: Any) -> dict[str, Any]:
    return parse_policy({"load": load}).of("load")


def test_a_schedule_has_a_request_at_least_and_as_many_as_the_rate_gives_in_its_time() -> None:
    assert [len(arrivals(rate, 10, seed=1)) for rate in (0.01, 0.26, 1, 12.34)] == [1, 3, 10, 123]
    assert arrivals(1000, 10, seed=1).min() < 0.1


def test_a_summary_holds_what_was_measured_in_milliseconds() -> None:
    attempts = [
        Attempt(0.0, 0.001, 0.011),
        Attempt(0.5, 0.5, 0.52),
        Attempt(1.5, 1.504, 1.54),
        Attempt(2.9, 2.9, 2.91, "boom"),
    ]
    found = summarise(attempts, duration_s=3, slo_ms=30)
    assert (found.requests, found.errors, found.over, found.error_frac) == (4, 1, 2, 0.25)
    assert found.latency_ms == {
        "p50": 20.0, "p90": 36.0, "p95": 38.0, "p99": 39.6, "max": 40.0, "mean": pytest.approx(71 / 3, abs=1e-3),
    }  # fmt: skip
    assert found.over_per_window == (0, 1, 1)
    assert (found.offered_per_s, found.achieved_per_s) == (1.333, 1.333)
    assert (found.lag_p99_ms, found.lag_max_ms) == (3.91, 4.0)
    assert found.error_examples == ("boom",)


def test_a_summary_of_nothing() -> None:
    found = summarise([], duration_s=2, slo_ms=30)
    assert (found.requests, found.errors, found.over, found.error_frac) == (0, 0, 0, 0.0)
    assert (found.latency_ms, found.over_per_window, found.lag_max_ms, found.achieved_per_s) == ({}, (0, 0), 0, 0)


def test_numbers_are_kept_to_a_microsecond() -> None:
    found = summarise([Attempt(0, 0.0012345678, 0.0112345678)] * 3, duration_s=7, slo_ms=30)
    assert set(found.latency_ms.values()) == {11.235}
    assert (found.lag_p99_ms, found.lag_max_ms, found.offered_per_s) == (1.235, 1.235, 0.429)
    assert found.achieved_per_s == 0.429


def test_a_request_is_over_beyond_the_objective_and_not_at_it() -> None:
    assert summarise(took(250.0, 250.5, 249.0), duration_s=1, slo_ms=250).over == 1
    assert summarise(took(125.0), duration_s=1, slo_ms=125).over == 0


def test_windows_are_those_of_the_time_that_a_request_was_due() -> None:
    late = [Attempt(due, due, due + 1) for due in (0.0, 0.49, 0.5, 2.4, 9.0)]
    assert summarise(late, duration_s=2.5, slo_ms=1, window_s=0.5).over_per_window == (2, 1, 0, 0, 2)
    assert summarise(late, duration_s=2.5, slo_ms=1).over_per_window == (3, 0, 2)
    assert summarise(late[:1], duration_s=0.1, slo_ms=1).over_per_window == (1,)


def test_what_was_achieved_lasts_until_the_last_was_sent() -> None:
    found = summarise([Attempt(0, 0, 1), Attempt(1, 4, 5)], duration_s=2, slo_ms=1e9)
    assert (found.offered_per_s, found.achieved_per_s) == (1.0, 0.5)


def test_three_kinds_of_errors_are_told_each_once() -> None:
    attempts = [Attempt(0, 0, 1, error) for error in ("a", "b", "a", "c", "d")]
    assert summarise(attempts, duration_s=1, slo_ms=1).error_examples == ("a", "b", "c")


def summary(**changes: Any) -> LoadSummary:
    """Of two windows; `requests` and `over` are spread over both, unless the windows are given."""
    changes = {"requests": 20, "over": 0, **changes}
    spread = {f"{name}_per_window": _halves(changes[count]) for name, count in (("sent", "requests"), ("over", "over"))}
    return replace(summarise(took(*[10.0] * 20), duration_s=2, slo_ms=250), **{**spread, **changes})


def _halves(count: int) -> tuple[int, int]:
    return count - count // 2, count // 2


def test_a_generator_may_be_as_late_as_the_limit_and_send_99_percent_of_its_rate() -> None:
    assert generator_limit(summary(lag_p99_ms=50.0), max_lag_ms=50) == ""
    assert generator_limit(summary(lag_p99_ms=50.1), max_lag_ms=50) == (
        "it sent 1 % of its requests more than 50 ms late, and 50 ms is the limit"
    )
    rates = {"offered_per_s": 100.0}
    assert generator_limit(summary(**rates, achieved_per_s=99.0), max_lag_ms=50) == ""
    assert (
        generator_limit(summary(**rates, achieved_per_s=98.9), max_lag_ms=50)
        == "it sent 98.9 requests/s instead of 100.0"
    )


@pytest.mark.parametrize(
    ("load", "limit"),
    [
        ({}, 20),
        ({"slo_ms": 99}, 20),
        ({"slo_ms": 250}, 50),
        ({"slo_ms": 250, "max_lag_ms": 5}, 5),
        ({"max_lag_ms": 90}, 90),
    ],
)
def test_a_fifth_of_the_objective_but_20_ms_at_least_may_be_late(load: dict[str, Any], limit: float) -> None:
    assert max_lag_ms(section(**load)) == limit


@pytest.mark.parametrize("slo_ms", [None, 1000])
@pytest.mark.parametrize(
    ("lag_s", "unsent", "broken", "verdict"),
    [(0.021, 1, 0, "errored"), (0.0, 1, 0, "failed"), (0.021, 0, 1, "failed"), (0.021, 1, 1, "failed")],
)
def test_what_a_late_generator_did_not_send_is_no_failure_of_the_release(
    slo_ms: float | None, lag_s: float, unsent: int, broken: int, verdict: str
) -> None:
    """One in a thousand may fail, and one in five hundred was not answered; the objective is met."""
    dues = [at / 50 for at in range(500)]
    attempts = [Attempt(due, due + lag_s, due + lag_s + 0.001) for due in dues]
    attempts[:unsent] = [replace(one, error="all taken", is_sent=False) for one in attempts[:unsent]]
    attempts[400 : 400 + broken] = [replace(one, error="boom") for one in attempts[400 : 400 + broken]]
    found = summarise(attempts, duration_s=10, slo_ms=slo_ms or float("inf"))
    judged = judge_load(found, section(slo_ms=slo_ms, rate_per_s=50, max_lag_ms=20, slo_quantile=0.9))
    assert (judged.verdict, judged.evidence["unsent"]) == (verdict, unsent)


@pytest.mark.parametrize(("errors", "verdict"), [(0, "passed"), (2, "passed"), (3, "failed")])
def test_errors_are_allowed_up_to_their_share(errors: int, verdict: str) -> None:
    attempts = [*took(*[10.0] * (20 - errors)), *[Attempt(1.9, 1.9, 1.91, "boom")] * errors]
    judged = judge_load(summarise(attempts, duration_s=2, slo_ms=1e9), section(max_error_frac=0.1))
    assert judged.verdict == verdict
    assert judged.evidence["error_frac"] == errors / 20
    if errors == 3:
        assert judged.reason == (
            "3 of 20 requests failed (15.00%; 10.00% are allowed): boom. The rate is 20/s, the policy's load.rate_per_s; "
            "the server answered 8.5/s."
        )
        said = judge_load(summary(errors=3), section(max_error_frac=0.1)).reason
        assert said.startswith("3 of 20 requests failed (15.00%; 10.00% are allowed). The")


def test_the_evidence_is_the_summary_with_what_was_demanded() -> None:
    policy = section(slo_ms=250, slo_quantile=0.9, seed=7)
    judged = judge_load(summary(errors=1, over=3, over_per_window=(3, 0), requests=3001), replace_in(policy, 0.01))
    told = {
        name: judged.evidence[name]
        for name in ("error_frac", "max_error_frac", "slo_ms", "slo_quantile", "seed", "phi")
    }
    assert told == {
        "error_frac": 0.000333, "max_error_frac": 0.01, "slo_ms": 250, "slo_quantile": 0.9, "seed": 7, "phi": 4.5,
    }  # fmt: skip


def replace_in(policy: dict[str, Any], max_error_frac: float) -> dict[str, Any]:
    return {**policy, "max_error_frac": max_error_frac}


def test_the_objectives_evidence_is_that_of_its_test() -> None:
    policy = section(slo_ms=250, slo_quantile=0.9, confidence=0.8)
    judged = judge_load(summary(over=1, over_per_window=(1, 0)), policy)
    expected = judge_slo(1, 20, quantile=0.9, confidence=0.8, phi=1.5)
    needed = least_requests(quantile=0.9, confidence=0.8, phi=1.5)
    assert judged.evidence["slo_test"] == {
        "over": 1, "requests": 20, "seconds": 2, "phi": 1.5, "log_e_pass": round(expected.log_e_pass, 6),
        "log_e_fail": round(expected.log_e_fail, 6), "confidence": 0.8, "least_requests_to_pass": needed,
        "least_seconds_to_pass": 8, "deadline_s": 60,
    }  # fmt: skip
    assert judged.reason == (
        "1 of 20 requests were over 250 ms and at most 10.00% may be: not enough evidence either way; "
        f"a pass takes at least {needed} requests."
    )
    enough = judge_load(summary(requests=needed, over=needed // 10, over_per_window=(1, 1)), policy)
    assert enough.verdict is Verdict.UNDECIDED and "a pass takes" not in enough.reason


def test_a_decided_objective_says_so_with_its_confidence() -> None:
    policy = section(slo_ms=250, slo_quantile=0.9, confidence=0.8)
    passed = judge_load(summary(requests=900, over=0), policy)
    assert passed.reason == "0 of 900 requests were over 250 ms and at most 10.00% may be: proven at confidence 0.8."
    failed = judge_load(summary(requests=900, over=800, over_per_window=(400, 400)), policy)
    assert failed.verdict is Verdict.FAILED and failed.reason.endswith("may be: refuted at confidence 0.8.")


def test_a_late_generator_excuses_nothing_but_an_objective_that_was_met() -> None:
    policy = section(slo_ms=250, slo_quantile=0.9)
    late = {"lag_p99_ms": 60.0}
    unclear = judge_load(summary(**late), policy)
    assert unclear.verdict is Verdict.ERRORED and unclear.evidence["max_lag_ms"] == 50
    assert judge_load(summary(**late, requests=900), policy).verdict is Verdict.PASSED
    assert (
        judge_load(summary(**late, requests=900, over=800, over_per_window=(400, 400)), policy).verdict
        is Verdict.ERRORED
    )
    assert judge_load(summary(**late), section()).verdict is Verdict.ERRORED, "without an objective nothing is proven"


@pytest.mark.parametrize(("achieved_per_s", "is_proven"), [(9.9, True), (9.89, False)])
def test_a_proof_takes_99_percent_of_the_rate(achieved_per_s: float, is_proven: bool) -> None:
    sent = summary(offered_per_s=10.0, achieved_per_s=achieved_per_s)
    passed, failed = Judgement(Verdict.PASSED, ""), Judgement(Verdict.FAILED, "")
    assert proven_all_the_same(sent, passed, section(slo_ms=250)) is is_proven
    assert not proven_all_the_same(sent, failed, section(slo_ms=250))
    assert not proven_all_the_same(sent, passed, section())


FOUND = Judgement(Verdict.PASSED, "Proven.", {})


def full(ends: list[float], *, rate: float = 10, p50_s: float = 0.1, late_s: float = 0.0, **load: Any) -> Judgement:
    """The judgement of requests that were all due at 0, the first of them sent late, and ended then."""
    attempts = [Attempt(0, late_s if i == 0 else 0, end) for i, end in enumerate(ends)]
    return judge_full(FOUND, attempts, Burst(len(ends), len(ends), 10), section(rate_per_s=rate, **load), p50_s=p50_s)


def test_a_burst_keeps_up_to_the_last_moment_that_the_rate_gives_it() -> None:
    """Eight at 10/s: the eighth may end 0.7 s after the first, which may take 0.1 s."""
    assert full([0.1] * 7 + [0.799]).verdict is Verdict.PASSED
    assert full([0.5] * 8, rate=14).verdict is Verdict.PASSED  # 7 / 14 + 1 / 14
    assert full([0.801] * 8).verdict is Verdict.FAILED
    assert full([0.875] * 8, rate=8, p50_s=0.0).verdict is Verdict.PASSED, (
        "the time of one at the rate is given at least"
    )
    assert full([1.001] * 8, rate=8, p50_s=0.0).verdict is Verdict.FAILED
    assert full([0.89] * 8, rate=10, p50_s=0.2).verdict is Verdict.PASSED, (
        "and what one takes at leisure, where that is more"
    )


def test_the_slowest_tenth_may_take_longer() -> None:
    """Of 20 the last two are left aside: the 18th may end after 17 / 10 s and the first one's 0.1 s."""
    assert full([1.79] * 18 + [9.0] * 2).verdict is Verdict.PASSED
    assert full([1.79] * 17 + [9.0] * 3).verdict is Verdict.FAILED
    assert full([0.1] * 8 + [9.0]).verdict is Verdict.FAILED, "of nine none is left aside"


def test_what_was_answered_a_second_is_the_best_of_the_last_tenth() -> None:
    assert full([1.0] * 18 + [4.0] * 2).evidence["full_per_s"] == 18
    assert full([3.0] * 8).evidence["full_per_s"] == 2.67
    assert full([0.0] * 8).evidence["full_per_s"] == 8000, "an end at 0 counts as a thousandth of a second"


def test_lateness_of_the_client_is_an_error_up_to_what_it_explains() -> None:
    assert full([1.0] * 8, late_s=0.25).verdict is Verdict.ERRORED
    assert full([1.0] * 8, late_s=0.15).verdict is Verdict.FAILED
    assert full([0.75] * 8, late_s=0.5).verdict is Verdict.PASSED


def test_lateness_counts_from_when_a_request_was_due_and_the_first_answer_is_the_first() -> None:
    policy = section(rate_per_s=10)
    on_time = [Attempt(0.5, 0.5, 1.0)] * 8
    assert judge_full(FOUND, on_time, Burst(8, 8, 10), policy, p50_s=0.1).verdict is Verdict.FAILED
    quick_first = [Attempt(0, 0, end) for end in [0.1] + [0.95] * 7]
    assert judge_full(FOUND, quick_first, Burst(8, 8, 10), policy, p50_s=5.0).verdict is Verdict.FAILED
    assert judge_full(FOUND, [], Burst(0, 0, 10), policy, p50_s=0.1).verdict is Verdict.FAILED, "nobody was answered"


@pytest.mark.parametrize(("broken", "verdict"), [(2, "passed"), (3, "failed")])
def test_errors_of_a_full_server_are_allowed_up_to_their_share(broken: int, verdict: str) -> None:
    attempts = [Attempt(0, 0, 0.1)] * (20 - broken) + [Attempt(0, 0, 0.1, f"e{i % 4}") for i in range(broken)]
    found = judge_full(FOUND, attempts, Burst(20, 5, 10), section(max_error_frac=0.1), p50_s=0.1)
    assert found.verdict == verdict
    assert found.evidence == {
        "full_requests": 20, "full_at_once": 5, "full_refused": 0, "full_errors": broken, "full_per_s": 200,
    }  # fmt: skip
    if verdict == "failed":
        assert found.reason == "Of 20 requests, 5 at once, 3 failed: e0; e1; e2. At leisure: Proven."


@pytest.mark.parametrize(
    ("rate", "p50_s", "batch", "instances", "requests"),
    [(20, 0.01, 4, 1, 16), (20, 0.01, 5, 1, 20), (20, 0.01, 5, 3, 60), (40, 0.11, 1, 1, 18), (20, 0.01, 64, 1, 256), (3, 9, 1, 1, 108)],
)  # fmt: skip
def test_a_burst_is_four_full_batches_or_four_times_what_is_in_flight(
    rate: float, p50_s: float, batch: int, instances: int, requests: int
) -> None:
    found = burst_of(
        section(rate_per_s=rate), p50_s=p50_s, max_batch_size=batch, instances=instances, max_concurrency=None
    )
    assert found == Burst(requests, requests, 10 + requests / rate)


def test_the_generator_draws_evenly_over_the_whole_time() -> None:
    early = np.mean(arrivals(500, 10, seed=2) < 5)
    assert early == pytest.approx(0.5, abs=0.03)
